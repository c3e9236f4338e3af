"""Distance from the reference policy, per token."""
