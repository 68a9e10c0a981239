"""Call every public function with good, nearly good and impossible arguments: no crash, no hang, no write on refusal,
errors that name.
"""

from integration.fuzz import main

if __name__ == "__main__":
    raise SystemExit(main())
