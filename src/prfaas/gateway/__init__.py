"""The head of a PD cluster: the OpenAI front door, the router's driver, the legs of each request."""
