-- The outbox of deferd in PostgreSQL, version {version}, written by `deferd outbox init --print`.
-- Run it in one transaction. It makes the schema `deferd`, upgrades an earlier version of it, and may be repeated.
-- Then let the role of the application use it: grant usage on schema deferd to APPLICATION;

select pg_catalog.pg_advisory_xact_lock({schema_lock});

do $block$
begin
    if pg_catalog.getdatabaseencoding() = 'SQL_ASCII' then
        raise exception using
            errcode = 'object_not_in_prerequisite_state',
            message = 'the database has the encoding SQL_ASCII, in which texts need not be valid in any',
            hint = 'Use a database with the encoding UTF8.';
    end if;
    -- `create schema if not exists` asks for the right to create schemas, also where there is one.
    if not exists (select from pg_catalog.pg_namespace where nspname = 'deferd') then
        create schema deferd;
    end if;
end
$block$;

create table if not exists deferd.version (version integer not null);

do $block$
declare
    found integer := (select max(version) from deferd.version);
begin
    if found > {version} then
        raise exception using
            errcode = 'object_not_in_prerequisite_state',
            message = pg_catalog.format('the schema deferd has version %s, and this deferd knows version {version}', found),
            hint = 'Use a deferd of at least that version.';
    end if;
end
$block$;

create sequence if not exists deferd.outbox_position;
create table if not exists deferd.outbox (
    position bigint primary key default pg_catalog.nextval('deferd.outbox_position'),
    verb text not null check (verb in ({verbs})),
    topic text,
    id text,
    fields jsonb not null,
    written_at timestamptz not null default pg_catalog.clock_timestamp()
);
-- Rows come and go: without this, each read would pass over the dead ones of minutes.
alter table deferd.outbox set (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_threshold = -1,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 10000,
    toast.autovacuum_vacuum_cost_delay = 0
);
create table if not exists deferd.refused (
    position bigint primary key,
    verb text not null,
    topic text,
    id text,
    fields jsonb not null,
    written_at timestamptz not null,
    refused_at timestamptz not null default pg_catalog.clock_timestamp(),
    problem jsonb not null
);
create table if not exists deferd.relay (
    is_only boolean primary key default true check (is_only),
    name text,
    since timestamptz not null default pg_catalog.clock_timestamp(),
    clean_stop boolean not null default true
);
insert into deferd.relay default values on conflict do nothing;

-- Gives a row its place in the order of commits, and wakes a relay that sleeps, which holds the lock. One that does not
-- sleep can't begin to before this commit has ended, because the commit holds the lock then. To notify each time would
-- be simpler, but commits that notify wait for each other until they are on the disk. PREPARE TRANSACTION refuses those:
-- such a transaction sets `deferd.notify` to off, and the relay finds its rows when it looks by itself, each second.
-- The transaction has one of the locks before it has a position: by that the relay knows which rows may still appear.
-- The row is found by its place in the table: by its position, serializable transactions would read the page of the index
-- in which others have their rows, and fail for no reason.
-- The table is nearly empty most of the time: without the setting a session would plan to read it as a whole for each
-- row, and keep that plan while the table grows.
create or replace function deferd.at_commit() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $body$
begin
    if not pg_try_advisory_xact_lock_shared({sleep_lock}) then
        perform pg_advisory_xact_lock_shared({commit_lock});  -- nobody has it alone, so this does not wait
        if current_setting('deferd.notify', true) is distinct from 'off' then
            perform pg_notify('deferd_outbox', '');
        end if;
    end if;
    update deferd.outbox set position = nextval('deferd.outbox_position') where ctid = new.ctid;
    return null;
end
$body$;

do $block$
begin
    if not exists (
        select from pg_catalog.pg_trigger where tgrelid = 'deferd.outbox'::regclass and tgname = 'at_commit'
    ) then
        create constraint trigger at_commit after insert on deferd.outbox deferrable initially deferred
            for each row execute function deferd.at_commit();
    end if;
end
$block$;

create or replace function deferd.refuse(path text, problem text, value text default null) returns void
language plpgsql as $body$
begin
    raise exception using
        errcode = 'invalid_parameter_value',
        column = path,
        message = path || ' ' || problem || coalesce(' (it is ' || left(value, 100) || ')', '');
end
$body$;

-- The result of a check is true, and is assigned: PERFORM would run a query for each call, which takes longer.
create or replace function deferd.check_type(path text, value jsonb, type text, meaning text) returns boolean
language plpgsql as $body$
begin
    if jsonb_typeof(value) <> type then
        perform deferd.refuse(path, 'must be ' || meaning, value::text);
    end if;
    return true;
end
$body$;

create or replace function deferd.check_number(
    path text, value jsonb, low numeric, high numeric, unit text
) returns boolean
language plpgsql as $body$
begin
    if jsonb_typeof(value) <> 'number' then
        perform deferd.refuse(path, 'must be a number', value::text);
    elsif value::numeric < low then
        perform deferd.refuse(path, 'must be at least ' || low || unit, value::text);
    elsif value::numeric > high then
        perform deferd.refuse(path, 'must be at most ' || high || unit, value::text);
    end if;
    return true;
end
$body$;

create or replace function deferd.check_whole(path text, value jsonb, low numeric, high numeric) returns boolean
language plpgsql as $body$
declare
    checked boolean;
begin
    if jsonb_typeof(value) <> 'number' or value::text ~ '[.]' then
        perform deferd.refuse(path, 'must be a whole number', value::text);
    end if;
    checked := deferd.check_number(path, value, low, high, '');
    return true;
end
$body$;

-- `shape` is the pattern without its bound, which is `most`: a bound makes a match take ten times as long.
create or replace function deferd.check_name(
    path text, value text, shape text, most integer, meaning text
) returns boolean
language plpgsql as $body$
begin
    if value is null then
        perform deferd.refuse(path, 'is required');
    elsif length(value) > most or value collate "C" !~ shape then
        perform deferd.refuse(path, meaning, to_jsonb(value)::text);
    end if;
    return true;
end
$body$;

create or replace function deferd.check_text(
    path text, value jsonb, shape text, most integer, meaning text
) returns boolean
language plpgsql as $body$
declare
    checked boolean;
begin
    checked := deferd.check_type(path, value, 'string', 'a string');
    checked := deferd.check_name(path, value #>> '{}', shape, most, meaning);
    return true;
end
$body$;

create or replace function deferd.check_length(path text, value jsonb, low integer, high integer) returns boolean
language plpgsql as $body$
declare
    checked boolean;
begin
    checked := deferd.check_type(path, value, 'string', 'a string');
    if length(value #>> '{}') < low then
        perform deferd.refuse(path, 'must have at least ' || low || ' characters', value::text);
    elsif length(value #>> '{}') > high then
        perform deferd.refuse(path, 'must have at most ' || high || ' characters', value::text);
    end if;
    return true;
end
$body$;

create or replace function deferd.check_choice(path text, value jsonb, choices jsonb, meaning text) returns boolean
language plpgsql as $body$
begin
    if jsonb_typeof(value) <> 'string' or not choices @> value then
        perform deferd.refuse(path, meaning, value::text);
    end if;
    return true;
end
$body$;

create or replace function deferd.check_date(path text, value jsonb) returns boolean
language plpgsql as $body$
declare
    date_text text := value #>> '{}';
begin
    if jsonb_typeof(value) = 'string' and date_text ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}$' and date_text !~ '^0000' then
        begin
            perform make_date(split_part(date_text, '-', 1)::int, split_part(date_text, '-', 2)::int,
                split_part(date_text, '-', 3)::int);
            return true;
        exception when datetime_field_overflow then
            null;
        end;
    end if;
    perform deferd.refuse(path, 'must be a date, YYYY-MM-DD', value::text);
    return true;
end
$body$;

create or replace function deferd.check_list(path text, value jsonb, low integer, high integer) returns boolean
language plpgsql as $body$
declare
    checked boolean;
begin
    checked := deferd.check_type(path, value, 'array', 'a list');
    if jsonb_array_length(value) < low then
        perform deferd.refuse(path, 'must have at least ' || low || ' items');
    elsif jsonb_array_length(value) > high then
        perform deferd.refuse(path, 'must have at most ' || high || ' items');
    end if;
    return true;
end
$body$;

create or replace function deferd.check_different(path text, value jsonb, what text) returns boolean
language plpgsql as $body$
begin
    if jsonb_array_length(value) > 1 and (
        select count(distinct item) < count(*) from jsonb_array_elements(value) as item
    ) then
        perform deferd.refuse(path, 'must not repeat ' || what, value::text);
    end if;
    return true;
end
$body$;

create or replace function deferd.check_object(path text, value jsonb, known text[], required text[]) returns boolean
language plpgsql as $body$
declare
    checked boolean;
    name text;
begin
    checked := deferd.check_type(path, value, 'object', 'a JSON object');
    for name in select key from jsonb_object_keys(value) as key where key <> all (known) limit 1 loop
        perform deferd.refuse(path || '.' || name, 'is not a known field');
    end loop;
    for name in select key from unnest(required) as key where not value ? key limit 1 loop
        perform deferd.refuse(path || '.' || name, 'is required');
    end loop;
    return true;
end
$body$;

create or replace function deferd.check_headers(
    path text, value jsonb, most integer, most_bytes integer
) returns boolean
language plpgsql as $body$
declare
    bytes bigint;
    names bigint;
    wrong text;
begin
    select count(*), sum(octet_length(convert_to(key || text, 'UTF8'))),
        min(key) filter (where key = '' or key collate "C" !~ {header_text})
    into names, bytes, wrong from jsonb_each_text(value) as one (key, text);
    if names > most then
        perform deferd.refuse(path, 'must have at most ' || most || ' items');
    elsif wrong is not null then
        perform deferd.refuse(path, 'must have names without control characters and not empty', to_jsonb(wrong)::text);
    elsif bytes > most_bytes then
        perform deferd.refuse(path, 'must have at most ' || most_bytes || ' bytes of names and values, has ' || bytes);
    end if;
    return true;
end
$body$;

{checks_of_objects}

create or replace function deferd.check_option(path text, value jsonb) returns boolean
language plpgsql as $body$
declare
    checked boolean;
    item record;
begin
    case path
{checks_of_options}
    else
        perform deferd.refuse(path, 'is not an option that `fields` takes');
    end case;
    return true;
end
$body$;

create or replace function deferd.check_fields(fields jsonb) returns boolean
language plpgsql as $body$
declare
    checked boolean;
    name text;
    value jsonb;
begin
    checked := deferd.check_type('fields', fields, 'object', 'a JSON object');
    for name, value in select * from jsonb_each(fields) loop
        checked := deferd.check_option(name, value);
    end loop;
    return true;
end
$body$;

create or replace function deferd.check_body(body jsonb) returns boolean
language plpgsql as $body$
declare
    bytes integer := octet_length(body::text);
begin
    if bytes < 300 then -- too short for what is refused here
        return true;
    elsif bytes > {body_bytes} then -- no service would take it, and a relay would need a multiple of it as memory
        perform deferd.refuse('body', 'must have at most {body_bytes} bytes as JSON, has ' || bytes);
    elsif jsonb_path_exists(body, 'strict $.**{{depth}} ? (@.type() == "object" || @.type() == "array")') then
        perform deferd.refuse('body', 'is nested deeper than {depth} levels');
    elsif jsonb_path_exists(body, 'strict $.** ? (@.type() == "number" && @.abs() > {float_max})') then
        perform deferd.refuse('body', 'has a number beyond 1.8e308, the maximum');
    end if;
    return true;
end
$body$;

-- When the job is due, as text for its JSON; null: at once. It is the same however late the relay is.
create or replace function deferd.due(delay interval, run_at timestamptz) returns text
language plpgsql as $body$
declare
    present timestamptz := clock_timestamp();
    latest timestamptz := present + make_interval(secs => {delay_max});
begin
    if delay is not null then
        if run_at is not null then
            perform deferd.refuse('run_at', 'and delay exclude each other: give one of them');
        elsif delay < interval '0' then
            perform deferd.refuse('delay', 'must be at least 0 seconds', delay::text);
        elsif extract(epoch from delay) > {delay_max} then
            perform deferd.refuse('delay', 'must be at most {delay_max} seconds', delay::text);
        end if;
        run_at := least(present + delay, latest); -- ten years by the calendar may have a day more
    elsif run_at > latest then
        perform deferd.refuse('run_at', 'must be at most {delay_max} seconds (10 years) ahead', run_at::text);
    end if;
    return to_char(greatest(run_at, 'epoch') at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
end
$body$;

-- The parameters follow the fields of the API, so those of another version of deferd differ.
do $block$
declare
    other regprocedure;
begin
    for other in
        select p.oid::regprocedure
        from pg_catalog.pg_proc p,
            (values {signatures}) as wanted (name, arguments)
        where p.pronamespace = 'deferd'::regnamespace and p.proname = wanted.name
            and pg_catalog.pg_get_function_identity_arguments(p.oid) <> wanted.arguments
    loop
        execute 'drop function ' || other;
    end loop;
end
$block$;

create or replace function deferd.put({put_parameters}) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
#variable_conflict use_variable
declare
    checked boolean;
    options jsonb := coalesce(fields, '{}');
    has_id boolean := id is not null;
    path text;
    value jsonb;
    item record;
    due text := case when delay is not null or run_at is not null then deferd.due(delay, run_at) end;
begin
{check_topic}
    if has_id then
    {check_id}
    else
        id := replace(gen_random_uuid()::text, '-', '');
    end if;
    if on_conflict = 'append' or fields ->> 'on_conflict' = 'append' then
        perform deferd.refuse('on_conflict', 'must not be append: the outbox may send a row twice after a crash, and'
            ' would append the body twice');
    end if;
    if fields is not null then
        checked := deferd.check_fields(fields);
    end if;
{put_options}
    if options <> '{}' then
        if options ->> 'if_reserved' = 'after' and options ->> 'on_conflict' = 'reject' then
            perform deferd.refuse('if_reserved', '`after` needs `on_conflict` `keep` or `replace`, not `reject`');
        elsif jsonb_typeof(options -> 'max_wait') <> 'null' then
            if options ->> 'on_conflict' is distinct from 'replace' then
                perform deferd.refuse('max_wait', 'needs `on_conflict` `replace`, which moves the due time');
            elsif extract(epoch from delay) > (options ->> 'max_wait')::numeric then
                perform deferd.refuse(
                    'max_wait', 'must be at least the `delay`, ' || trim_scale(extract(epoch from delay)) || ' seconds',
                    options ->> 'max_wait'
                );
            end if;
        end if;
        if options ->> 'if_reserved' = 'after' and options ->> 'batch' is not null then
            perform deferd.refuse('batch', 'must be left out with `append` and `after`: a batch counts jobs of one put'
                ' each');
        end if;
        if not has_id then
            for path in
                select one.key from jsonb_each_text(options) as one
                where one.key in ('max_wait', 'unique_for') and one.value is not null
                    or one.key = 'if_reserved' and one.value = 'after'
            loop
                perform deferd.refuse(path, 'needs an `id`: without one no two puts are for the same job');
            end loop;
        end if;
    end if;
    options := jsonb_build_object('on_conflict', 'keep') || options || jsonb_build_object('topic', topic, 'id', id);
    if due is not null then
        options := options || jsonb_build_object('run_at', due);
    end if;
    if body is not null then
        checked := deferd.check_body(body);
        options := options || jsonb_build_object('body', body);
    end if;
    insert into deferd.outbox (verb, topic, id, fields) values ('put', topic, id, options);
    return id;
end
$body$;

create or replace function deferd.reschedule({reschedule_parameters}) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
#variable_conflict use_variable
declare
    checked boolean;
    options jsonb := coalesce(fields, '{}');
    due text := case when delay is not null or run_at is not null then deferd.due(delay, run_at) end;
    name text;
    value jsonb;
    item record;
begin
{check_topic}
{check_id}
    if fields is not null then
        checked := deferd.check_fields(fields);
        for name in select key from jsonb_object_keys(fields) as key where key <> all ({reschedule_names}) limit 1 loop
            perform deferd.refuse(name, 'is not an option that `fields` takes');
        end loop;
    end if;
{reschedule_options}
    if due is not null then
        options := options || jsonb_build_object('run_at', due);
    end if;
    if body is not null then
        checked := deferd.check_body(body);
        options := options || jsonb_build_object('body', body);
    end if;
    insert into deferd.outbox (verb, topic, id, fields) values ('reschedule', topic, id, options);
end
$body$;

create or replace function deferd.cancel({cancel_parameters}) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
#variable_conflict use_variable
declare
    checked boolean;
    options jsonb := '{}';
begin
{check_topic}
{check_id}
{cancel_options}
    insert into deferd.outbox (verb, topic, id, fields) values ('cancel', topic, id, options);
end
$body$;

create or replace function deferd.cancel_tag(tag text, if_reserved text default 'cancel') returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
declare
    checked boolean;
    options jsonb := jsonb_build_object('tag', tag, 'if_reserved', if_reserved);
begin
{cancel_tag_checks}
    insert into deferd.outbox (verb, fields) values ('cancel_tag', options);
end
$body$;

do $block$
declare
    internal regprocedure;
begin
    for internal in
        select p.oid::regprocedure from pg_catalog.pg_proc p
        where p.pronamespace = 'deferd'::regnamespace and p.proname not in ({verbs})
    loop
        execute 'revoke all on function ' || internal || ' from public';
    end loop;
end
$block$;

delete from deferd.version;
insert into deferd.version values ({version});
