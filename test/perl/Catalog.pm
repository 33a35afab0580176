# What an extension has put into the catalog, as text: one line an object, with everything that two
# databases can have in common. Two ways to the same version of an extension must give the same text.
package Catalog;
use strict;
use warnings;
use Exporter 'import';

our @EXPORT = qw(catalog_of);

my $lines = <<'SQL';
WITH members AS (
	SELECT d.classid, d.objid FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
	WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = '%s'),
details AS (
	-- Of a function all that CREATE FUNCTION says: volatility, cost, rows, library, symbol.
	SELECT 'pg_proc'::regclass::oid AS classid, p.oid AS objid, concat_ws(' ', p.proacl::text,
		CASE WHEN p.prokind <> 'a' THEN pg_get_functiondef(p.oid)
			ELSE (SELECT concat_ws(' ', a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggtranstype::regtype,
				a.agginitval, p.proparallel, p.provolatile) FROM pg_aggregate AS a WHERE a.aggfnoid = p.oid) END) AS detail
	FROM pg_proc AS p WHERE p.oid IN (SELECT objid FROM members)
	UNION ALL SELECT 'pg_operator'::regclass, o.oid, concat_ws(' ', o.oprcode, o.oprcom::regoperator,
		o.oprnegate::regoperator, o.oprrest, o.oprjoin, o.oprcanmerge, o.oprcanhash, o.oprresult::regtype)
	FROM pg_operator AS o WHERE o.oid IN (SELECT objid FROM members)
	UNION ALL SELECT 'pg_type'::regclass, t.oid, concat_ws(' ', t.typlen, t.typalign, t.typstorage, t.typinput,
		t.typoutput, t.typreceive, t.typsend, t.typmodin, t.typmodout, t.typcategory, t.typispreferred, t.typacl::text)
	FROM pg_type AS t
	UNION ALL SELECT 'pg_cast'::regclass, c.oid, concat_ws(' ', c.castfunc::regprocedure, c.castcontext, c.castmethod)
	FROM pg_cast AS c
	UNION ALL SELECT 'pg_am'::regclass, a.oid, concat_ws(' ', a.amhandler, a.amtype) FROM pg_am AS a
	UNION ALL SELECT 'pg_opclass'::regclass, c.oid, concat_ws(' ', c.opcdefault, c.opcintype::regtype,
		c.opckeytype::regtype, f.opfname) FROM pg_opclass AS c JOIN pg_opfamily AS f ON f.oid = c.opcfamily
	UNION ALL SELECT 'pg_opfamily'::regclass, f.oid,
		(SELECT string_agg(concat_ws(' ', a.amopopr::regoperator, a.amopstrategy, a.amoppurpose,
			a.amopsortfamily::regclass), ', ' ORDER BY a.amopopr::regoperator::text COLLATE "C", a.amopstrategy)
			FROM pg_amop AS a WHERE a.amopfamily = f.oid) || ' / ' ||
		coalesce((SELECT string_agg(concat_ws(' ', p.amproc, p.amprocnum, p.amproclefttype::regtype), ', '
			ORDER BY p.amproc::text COLLATE "C") FROM pg_amproc AS p WHERE p.amprocfamily = f.oid), '')
	FROM pg_opfamily AS f WHERE f.oid IN (SELECT objid FROM members)
	UNION ALL SELECT 'pg_class'::regclass, c.oid, concat_ws(' ', c.relkind, c.relacl::text, pg_get_viewdef(c.oid))
	FROM pg_class AS c WHERE c.relkind = 'v' AND c.oid IN (SELECT objid FROM members))
SELECT pg_describe_object(m.classid, m.objid, 0) || ': ' || coalesce(d.detail, '') || ' -- ' ||
	coalesce(obj_description(m.objid, m.classid::regclass::name), '')
FROM members AS m LEFT JOIN details AS d USING (classid, objid)
ORDER BY pg_describe_object(m.classid, m.objid, 0) COLLATE "C"
SQL

sub catalog_of
{
	my ($node, $database, $extension) = @_;
	return $node->safe_psql($database, sprintf($lines, $extension));
}

1;
