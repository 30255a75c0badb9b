"""Values of users as bytes: the codec, schemas, one encoding for equal values, versions of stored values."""
