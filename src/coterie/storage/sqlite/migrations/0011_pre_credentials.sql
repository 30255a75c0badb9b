-- What a runner shows of its secrets and its TLS, as `transport/credentials.py` writes it; empty: it is of an older version.
alter table runners add column credentials text not null default '';
