"""Images, animations and videos, decoded safely."""
