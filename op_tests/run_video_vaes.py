"""diffusers' video autoencoders on hipconv's convolutions, compared with themselves on torch's."""

from peers.video_vaes import main

if __name__ == "__main__":
    raise SystemExit(main())
