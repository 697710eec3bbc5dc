"""The head of a cluster: its nodes, its prefill queue, tickets, link shares. Gateway and prefill service both have
one."""
