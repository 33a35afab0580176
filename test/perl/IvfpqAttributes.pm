# Tables with an ivfpq index that has attributes of several types, and conditions on them at random.
# Whatever an index gives for a condition is compared with a scan of the table in the same snapshot.
package IvfpqAttributes;
use strict;
use warnings;
use Exporter 'import';
use Test::More;
use IvfpqTest;

our @EXPORT = qw(prepare_items items_agree $columns);

# The columns of an index on items.
our $columns = 'v, i, n, f, b, at, e, x, u, tags';

my $setup = <<'SQL';
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
ALTER TYPE mood ADD VALUE 'bored' BEFORE 'ok';
CREATE TABLE items (id bigint, v vector(8), i int, n bigint, f real, b bool, at timestamp, e mood,
	x text, u uuid, tags int[], note text) WITH (fillfactor = 80);
-- Out of line, as it is.
ALTER TABLE items ALTER x SET STORAGE EXTERNAL;

-- An item with its attributes. Another version has other attributes, and the same vector.
CREATE FUNCTION item(id bigint, version bigint DEFAULT 0) RETURNS items LANGUAGE sql STABLE AS $$
	SELECT id, vec(id, 8), CASE WHEN r[1] % 9 > 0 THEN r[1] % 50 END,
		CASE WHEN r[2] % 9 > 0 THEN (r[2] % 100 - 50) * 100000000000 END,
		(ARRAY['NaN', '-Infinity', '-0', '0', '0.5', '7', NULL])[1 + r[3] % 7]::real,
		(ARRAY[true, false, NULL])[1 + r[4] % 3],
		CASE r[5] % 30 WHEN 0 THEN NULL WHEN 1 THEN 'infinity'
			ELSE timestamp '2026-11-01' + (r[5] % 30) * interval '12 hours' END,
		(ARRAY['sad', 'bored', 'ok', 'happy', NULL])[1 + r[6] % 5]::mood,
		CASE r[7] % 10 WHEN 9 THEN NULL WHEN 8 THEN repeat('long ' || r[7] % 3, 1000) ELSE 'x' || r[7] % 8 END,
		('00000000-0000-0000-0000-00000000000' || r[8] % 5)::uuid,
		CASE WHEN r[9] % 9 > 0 THEN ARRAY[r[9] % 20, r[10] % 20] END, ''
	FROM (SELECT array_agg((hashint8extended(id * 100 + k, version) & 65535)::int ORDER BY k) AS r
		FROM generate_series(1, 10) AS k) AS h
$$;

-- A condition at random.
CREATE FUNCTION random_condition() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	a int := random() * 49;
	c int := random() * 20;
	few text := (SELECT string_agg((random() * 49)::int::text, ', ') FROM generate_series(1, 3));
	mood text := (ARRAY['sad', 'bored', 'ok', 'happy'])[1 + a % 4];
	op text := (ARRAY['<', '<=', '=', '>=', '>'])[1 + floor(random() * 5)::int];
	all_of text[] := ARRAY[
		format('i %s %s', op, a), format('i BETWEEN %s AND %s', a, a + c),
		format('i IN (%s, NULL)', few), format('i = ANY (''{%s}''::bigint[])', few),
		'i IS NULL', format('i IS NOT NULL AND n %s %s', op, (a - 25) * 100000000000),
		format('f %s 0::real', op), format('f %s 0.5', op), 'b', 'NOT b', 'b IS NULL',
		format('at %s ''2026-11-%s''::timestamp', op, 1 + c), format('at %s ''2026-11-%s''::date', op, 1 + c),
		format('e = %L', mood), format('e %s %L', op, mood), format('e IN (%L, ''sad'')', mood),
		format('x = ''x%s''', a % 8), format('x = repeat(''long %s'', 1000)', a % 3), 'x IS NULL',
		format('x IN (''x%s'', ''x%s'', ''none'')', a % 8, c % 8),
		format('u = ''00000000-0000-0000-0000-00000000000%s''', a % 6),
		format('tags && ''{%s}''', few), format('tags @> ''{%s}''', c), 'tags IS NOT NULL'];
BEGIN
	RETURN (SELECT string_agg(all_of[1 + floor(random() * cardinality(all_of))::int], ' AND ')
			FROM generate_series(1, 1 + floor(random() * 3)::int));
END
$$;

-- What an index gives for a condition that the table does not, or null. Every candidate is ranked, in
-- all lists: nothing may be missing. With test.candidates, as many are ranked. `k` rows; null: all.
CREATE FUNCTION differs(relation text, condition text, query vector, k int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	statement text := format('SELECT coalesce(array_agg(id), ''{}''), coalesce(array_agg(d), ''{}'') FROM
		(SELECT id, v <-> $1 AS d FROM %s WHERE %s ORDER BY v <-> $1 %s) AS r', relation, condition,
		'LIMIT ' || k);
	ids bigint[];
	distances float8[];
	exact_ids bigint[];
	exact_distances float8[];
	line text;
	plan text := '';
BEGIN
	PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true),
		set_config('enable_bitmapscan', 'off', true), set_config('enable_indexscan', 'on', true),
		set_config('ivfpq.target_recall', '1', true), set_config('ivfpq.candidates', coalesce(current_setting('test.candidates', true), '100000'), true);
	IF k IS NULL THEN
		statement := replace(statement, 'LIMIT ', '');
	END IF;
	FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || replace(statement, '$1', quote_literal(query::text) || '::vector') LOOP
		plan := plan || line;
	END LOOP;
	EXECUTE statement INTO ids, distances USING query;
	PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_sort', 'on', true),
		set_config('enable_indexscan', 'off', true);
	EXECUTE statement INTO exact_ids, exact_distances USING query;
	PERFORM set_config('enable_indexscan', 'on', true);
	-- From 17 on the planner sees that x cannot have two values.
	IF plan NOT LIKE '%Index Scan%Order By: (v <->%' AND plan NOT LIKE '%Result%One-Time Filter: false%' THEN
		RETURN format('%s: not by the index: %s', condition, plan);
	END IF;
	IF k IS NULL AND (SELECT array_agg(i ORDER BY i) FROM unnest(ids) AS i) IS NOT DISTINCT FROM
			(SELECT array_agg(i ORDER BY i) FROM unnest(exact_ids) AS i)
		OR k IS NOT NULL AND distances = exact_distances AND
			cardinality(ids) = (SELECT count(DISTINCT i) FROM unnest(ids) AS i) THEN
		RETURN NULL;
	END IF;
	RETURN format('%s, %s rows wanted: %s rows, not %s; missing %s, too many %s', condition, coalesce(k::text, 'all'),
		cardinality(ids), cardinality(exact_ids),
		(SELECT array_agg(i) FROM (SELECT unnest(exact_ids) EXCEPT SELECT unnest(ids) LIMIT 10) AS s (i)),
		(SELECT array_agg(i) FROM (SELECT unnest(ids) EXCEPT SELECT unnest(exact_ids) LIMIT 10) AS s (i)));
END
$$;
-- The same as an error.
CREATE FUNCTION compare_items(relation text, condition text, query vector, k int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	difference text := differs(relation, condition, query, k);
BEGIN
	IF difference IS NOT NULL THEN
		RAISE '%', difference;
	END IF;
END
$$;
SQL
sub prepare_items
{
	my ($node, $rows) = @_;
	value($node, $setup);
	value($node, "INSERT INTO items SELECT r.* FROM generate_series(1, $rows) AS i, item(i) AS r") if $rows;
	return;
}

# Random conditions give the rows that a scan of the table gives.
#   relation   items
#   condition  one that holds beside each, as of a partial index
#   count      how many
sub items_agree
{
	my ($node, $seed, $name, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $relation = $options{relation} // 'items';
	my $count = $options{count} // 40;
	# Rows without a vector have no entries.
	my $also = "'v IS NOT NULL AND " . ($options{condition} ? "$options{condition} AND " : '') . "' || ";
	my $fraction = ($seed % 1000) / 1000;
	my $found = value($node, "DO 'BEGIN PERFORM setseed($fraction); END';
		SELECT d FROM (SELECT differs('$relation', ${also}random_condition(), vec(-n, 8),
			CASE WHEN n % 2 = 0 THEN n END) AS d FROM generate_series(1, $count) AS n) AS s
		WHERE d IS NOT NULL LIMIT 5");
	return is($found, '', $name);
}

1;
