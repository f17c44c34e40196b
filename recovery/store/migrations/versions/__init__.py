"""One file per revision of the schema. A released file is never changed: users' stores are made of it."""
