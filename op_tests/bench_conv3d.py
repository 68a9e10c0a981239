"""Speed of conv3d on the layers of video decoders, beside torch's own convolution and what the card could do at best."""

from benches.conv3d import main

if __name__ == "__main__":
    raise SystemExit(main())
