"""Speed of conv2d on the layers of image models, beside torch's own convolution and what the card could do at best."""

from benches.conv2d import main

if __name__ == "__main__":
    raise SystemExit(main())
