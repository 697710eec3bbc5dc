"""The head of a PrfaaS cluster: the front door for gateways of other clusters."""
