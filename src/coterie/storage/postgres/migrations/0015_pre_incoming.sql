-- Calls and starts of workflows that SQL has written, until a runner has checked them and moved them on (docs/sql.md) [O2].

-- A row whose key belongs to an earlier message stays, with the id of that message: its own id leads there. All others wait. The
-- arguments are text, so that a batch of bounded size can be chosen without reading them.
create table coterie.incoming (
    cluster text        collate "C" not null,
    id      text        collate "C" not null,
    kind    text        collate "C" not null check (kind in ('call', 'workflow')),
    type    text        collate "C" not null, -- the type of the entity, or the name of the workflow
    entity  text        collate "C" not null, -- the id of the entity, or of the run
    method  text        collate "C" not null,
    args    text        not null,
    key     text,
    sent_at timestamptz not null,
    due_at  timestamptz,
    same_as text        collate "C",
    primary key (cluster, id)
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);

create index incoming_waiting on coterie.incoming (cluster, kind, type, id) where same_as is null;
create index incoming_same on coterie.incoming (cluster, sent_at) where same_as is not null;

-- Store one row; returns its id. Its caller decides with whose rights: for `send` and `start_workflow` those of their owner.
-- The id is made as `MessageIds` makes it, with the microsecond in place of the sequence: ids of one session sort as they were
-- drawn.
create function coterie.add_incoming(
    kind text, type text, entity text, method text, args text, key text, due_at timestamptz, cluster text
) returns text language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    now constant timestamptz := clock_timestamp();
    us constant bigint := floor(extract(epoch from now) * 1000000);
    drawn constant text := lpad(to_hex(us / 1000), 12, '0') || lpad(to_hex(us % 1000 * 65), 4, '0')
        || substr(replace(gen_random_uuid()::text, '-', ''), 17);
    name text;
    given text;
begin
    foreach name in array array['type', 'entity', 'method'] loop
        given := case name when 'type' then type when 'entity' then entity else method end;
        if coalesce(given, '') = '' and (kind = 'call' or name <> 'method') then
            raise exception using errcode = 'invalid_parameter_value', message = format('coterie: the %s is empty', name);
        elsif octet_length(given) > 1000 then
            raise exception using errcode = 'invalid_parameter_value',
                message = format('coterie: the %s has %s bytes, more than 1000', name, octet_length(given));
        end if;
    end loop;
    if position('/' in type) > 0 then
        raise exception using errcode = 'invalid_parameter_value',
            message = format('coterie: the type %s has a "/", which divides type and id', quote_literal(type)),
            hint = 'write type and id as two arguments';
    elsif octet_length(args) > 1048576 then
        raise exception using errcode = 'program_limit_exceeded',
            message = format('coterie: the arguments have %s bytes, more than 1048576', octet_length(args)),
            hint = 'put large data into a table of your own, and send its key';
    elsif key = '' or octet_length(key) > 1000 then
        raise exception using errcode = 'invalid_parameter_value',
            message = format('coterie: the key has %s bytes, expected 1 to 1000', octet_length(key));
    elsif due_at < timestamptz '1970-01-01 00:00:00+00' or due_at >= timestamptz '2200-01-01 00:00:00+00' then
        raise exception using errcode = 'invalid_parameter_value',
            message = format('coterie: it would be due at %s, expected an instant from 1970 to 2199', due_at);
    elsif not exists (select from coterie.agreements as a where a.cluster = add_incoming.cluster) then
        raise exception using errcode = 'undefined_object',
            message = format('coterie: no runner of a cluster %s has ever used this database', quote_nullable(cluster)),
            hint = 'give its name with cluster =>, or start a runner first';
    end if;
    insert into coterie.incoming (cluster, id, kind, type, entity, method, args, key, sent_at, due_at)
    values (cluster, drawn, kind, type, entity, method, args, key, now, due_at);
    return drawn;
end
$$;

create function coterie.send(
    type text, entity text, method text, args jsonb default '{}', key text default null, at timestamptz default null,
    delay interval default null, cluster text default 'default'
) returns text language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if jsonb_typeof(args) is distinct from 'object' then
        raise exception using errcode = 'invalid_parameter_value',
            message = format('coterie: the arguments are %s, expected a JSON object', coalesce(jsonb_typeof(args), 'null')),
            hint = 'write them by name, as in {"cents": 5}';
    elsif at is not null and delay is not null then
        raise exception using errcode = 'invalid_parameter_value',
            message = 'coterie: at and delay are both given', hint = 'give one of them';
    elsif delay < interval '0' then
        raise exception using errcode = 'invalid_parameter_value', message = format('coterie: the delay is %s', delay);
    end if;
    return coterie.add_incoming(
        'call', type, entity, method, args::text, key, coalesce(at, clock_timestamp() + delay), cluster
    );
end
$$;

create function coterie.start_workflow(workflow text, payload jsonb, id text, cluster text default 'default')
returns text language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if btrim(id) = '' then
        raise exception using errcode = 'invalid_parameter_value', message = 'coterie: the id of the run is empty';
    end if;
    perform coterie.add_incoming('workflow', workflow, id, '', coalesce(payload, 'null')::text, null, null, cluster);
    return id;
end
$$;

-- Who may send is granted by name: coterie migrate --grant-send ROLE.
revoke all on function coterie.add_incoming(text, text, text, text, text, text, timestamptz, text) from public;
revoke all on function coterie.send(text, text, text, jsonb, text, timestamptz, interval, text) from public;
revoke all on function coterie.start_workflow(text, jsonb, text, text) from public;
