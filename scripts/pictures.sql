-- Pictures for scripts/demo, made by SQL: psql -v picture=path|neighbors -v src=... -v dst=... -At
-- prints an SVG. Images are vectors of 28 x 28 pixels in table images, their graph is images_graph.

-- A vector of pixels as a bitmap of 256 greys, dark on light: a header, a palette, and rows from
-- the lowest on, which SVG takes in line.
CREATE FUNCTION pg_temp.bitmap(image vector) RETURNS text LANGUAGE sql AS $$
    SELECT 'data:image/bmp;base64,' || translate(encode(
        bytea '\x424d46070000000000003604000028000000'                        -- 1862 bytes, pixels at 1078
        || bytea '\x1c0000001c0000000100080000000000100300000000000000000000'  -- 28 x 28, 8 bits each
        || bytea '\x0001000000000000'
        || (SELECT string_agg(decode(repeat(lpad(to_hex(grey), 2, '0'), 3) || '00', 'hex'), bytea ''
                              ORDER BY grey DESC) FROM generate_series(0, 255) AS grey)
        || (SELECT string_agg(decode(lpad(to_hex(pixel::int), 2, '0'), 'hex'), bytea ''
                              ORDER BY (place - 1) / 28 DESC, place)
            FROM unnest(image::real[]) WITH ORDINALITY AS p(pixel, place)),
        'base64'), E'\n', '')
$$;

-- An image with a line of text below it, in a cell of 84 x 104.
CREATE FUNCTION pg_temp.cell(image vector, label text, line bigint, place bigint) RETURNS text
LANGUAGE sql AS $$
    SELECT format('<image x="%s" y="%s" width="84" height="84" image-rendering="pixelated" href="%s"/>'
                  '<text x="%s" y="%s">%s</text>', 12 + place * 92, 44 + line * 112,
                  pg_temp.bitmap(image), 54 + place * 92, 141 + line * 112, label)
$$;

CREATE FUNCTION pg_temp.sheet(title text, columns bigint, lines bigint, cells text) RETURNS text
LANGUAGE sql AS $$
    SELECT format('<svg xmlns="http://www.w3.org/2000/svg" width="%1$s" height="%2$s" '
                  'viewBox="0 0 %1$s %2$s" font-family="sans-serif" font-size="11" '
                  'text-anchor="middle"><rect width="100%%" height="100%%" fill="white"/>'
                  '<text x="12" y="26" font-size="15" text-anchor="start">%3$s</text>%4$s</svg>',
                  16 + columns * 92, 40 + lines * 112, title, cells)
$$;

SELECT :'picture' = 'path' AS is_path \gset
\if :is_path
-- Ten images a line, each with its distance from the one before it.
SELECT pg_temp.sheet(format('The smoothest path from image %s to image %s: no step is longer than %s',
                            :src, :dst, round(max(distance))),
                     least(count(*), 10), (count(*) + 9) / 10,
                     string_agg(pg_temp.cell(embedding, coalesce(round(distance)::text, 'from here'),
                                             step / 10, step % 10), '' ORDER BY step))
FROM knn_path('images_graph', :src, :dst) JOIN images ON id = node;
\else
-- Ten rows: an image, and its ten nearest with their distances.
SELECT pg_temp.sheet('Images of ten kinds, each with its ten nearest', 11, 10, string_agg(cell, ''))
FROM (SELECT line - 1 AS line, id, label, embedding
      FROM (SELECT id, label, embedding, row_number() OVER (ORDER BY label) AS line
            FROM (SELECT DISTINCT ON (label) * FROM images ORDER BY label, id) AS first) AS numbered) AS i,
     LATERAL (SELECT pg_temp.cell(i.embedding, i.label, i.line, 0)
              UNION ALL
              SELECT pg_temp.cell(n.embedding, round(g.distance)::text, i.line, g.rank)
              FROM images_graph AS g JOIN images AS n ON n.id = g.dst WHERE g.src = i.id) AS c(cell);
\endif
