"""Who holds which prefixes: nodes of all clusters, by canonical block hashes."""
