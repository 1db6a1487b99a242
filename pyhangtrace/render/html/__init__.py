"""The report as one self-contained page: no network, strict content security policy, our own script."""
