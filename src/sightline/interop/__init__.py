"""To and from other toolkits. Every conversion keeps the numbers."""
