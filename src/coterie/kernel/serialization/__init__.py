"""Values of users as bytes: the codec, schemas, a canonical encoding, versions of stored values."""
