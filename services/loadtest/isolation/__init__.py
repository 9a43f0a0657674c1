"""A statistical test that tenants cannot tell by times what others have cached."""
