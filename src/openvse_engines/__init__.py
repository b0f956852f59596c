"""What one server needs: search engines outside of the index's folder.

It uses openvse as any package does: through its entry points and its public names.
"""

from openvse.stores import StoreKind

PGVECTOR = StoreKind(
    "openvse_engines.pgvector:PgvectorStore",
    extra="pgvector",
    schemes={"postgresql": "postgresql", "postgres": "postgres"},
    example="postgresql://user@localhost/database",
    container="table",
)
QDRANT = StoreKind(
    "openvse_engines.qdrant:QdrantStore",
    extra="qdrant",
    schemes={"http": "http", "https": "https", "qdrant": "http", "qdrants": "https"},
    example="http://localhost:6333",
    container="collection",
)
