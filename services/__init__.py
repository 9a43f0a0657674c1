"""What runs around the workers: router, tenants and admin, cluster start-up, command line, client, demo."""
