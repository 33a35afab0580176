-- COPY, in text and in binary, and what happens to a binary message that is no vector

CREATE TABLE copied (id int, v vector);
INSERT INTO copied
SELECT dims, (SELECT array_agg((sin(dims + i) * 10 ^ (i % 60 - 30))::real ORDER BY i)
              FROM generate_series(1, dims) AS i)
FROM generate_series(1, 120) AS dims;
INSERT INTO copied
VALUES (0, NULL), (16000, array_fill(-1.5, ARRAY[16000])), (-1, '[-0,3.4028235e38,1e-45]');
CREATE TABLE copied_back (LIKE copied);

\copy copied TO 'test/results/vector_copy.bin' WITH (FORMAT binary)
\copy copied_back FROM 'test/results/vector_copy.bin' WITH (FORMAT binary)
SELECT count(*), count(*) FILTER (WHERE vector_send(a.v) IS NOT DISTINCT FROM vector_send(b.v)) AS same
FROM copied AS a JOIN copied_back AS b USING (id);

TRUNCATE copied_back;
\copy copied TO 'test/results/vector_copy.txt'
\copy copied_back FROM 'test/results/vector_copy.txt'
SELECT count(*), count(*) FILTER (WHERE vector_send(a.v) IS NOT DISTINCT FROM vector_send(b.v)) AS same
FROM copied AS a JOIN copied_back AS b USING (id);

TRUNCATE copied_back;
\copy copied TO 'test/results/vector_copy.csv' WITH (FORMAT csv)
\copy copied_back FROM 'test/results/vector_copy.csv' WITH (FORMAT csv)
SELECT count(*), count(*) FILTER (WHERE vector_send(a.v) IS NOT DISTINCT FROM vector_send(b.v)) AS same
FROM copied AS a JOIN copied_back AS b USING (id);
DROP TABLE copied, copied_back;

-- A column of type bytea goes out in binary as the bytes it holds, so any message can be made.
CREATE TABLE received (v vector);
CREATE TABLE received_typed (v vector(2));
\set VERBOSITY sqlstate

\qecho [1,2], good
\copy (SELECT '\x000200003f80000040000000'::bytea) TO 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy received_typed FROM 'test/results/vector_message.bin' WITH (FORMAT binary)
SELECT v FROM received UNION ALL SELECT v FROM received_typed;

\set VERBOSITY terse
\qecho no dimensions
\copy (SELECT '\x00000000'::bytea) TO 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/vector_message.bin' WITH (FORMAT binary)

\qecho more dimensions than there may be, and than an int16 holds
\copy (SELECT '\x3e8100003f800000'::bytea) TO 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy (SELECT '\xffff00003f800000'::bytea) TO 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/vector_message.bin' WITH (FORMAT binary)

\qecho the reserved field in use
\copy (SELECT '\x000100013f800000'::bytea) TO 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/vector_message.bin' WITH (FORMAT binary)

\qecho fewer elements than announced, more than announced, and no header
\copy (SELECT '\x000200003f800000'::bytea) TO 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy (SELECT '\x000100003f80000040000000'::bytea) TO 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy (SELECT '\x0001'::bytea) TO 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/vector_message.bin' WITH (FORMAT binary)

\qecho not a number, and infinity
\copy (SELECT '\x000200003f8000007fc00000'::bytea) TO 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy (SELECT '\x00010000ff800000'::bytea) TO 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy received FROM 'test/results/vector_message.bin' WITH (FORMAT binary)

\qecho other dimensions than the column has
\copy (SELECT '\x000100003f800000'::bytea) TO 'test/results/vector_message.bin' WITH (FORMAT binary)
\copy received_typed FROM 'test/results/vector_message.bin' WITH (FORMAT binary)

SELECT count(*) AS received FROM received;
DROP TABLE received, received_typed;
