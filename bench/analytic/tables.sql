-- Tables like those of TPC-H (https://www.tpc.org/tpch/), scale 0.002, with values by hash instead of dbgen's.
CREATE FUNCTION draw(number int, salt int, choices int) RETURNS int LANGUAGE sql IMMUTABLE
    AS 'SELECT (hashint8extended(number, salt) & 2147483647)::int % choices';

CREATE TABLE customer AS
    SELECT i AS custkey, 'Customer#' || i AS name, draw(i, 1, 25) AS nationkey,
        (ARRAY['AUTOMOBILE', 'BUILDING', 'FURNITURE', 'HOUSEHOLD', 'MACHINERY'])[1 + draw(i, 2, 5)] AS mktsegment
    FROM generate_series(1, 300) i;

CREATE TABLE part AS
    SELECT i AS partkey, 'Brand#' || 11 + draw(i, 3, 45) AS brand, 1 + draw(i, 4, 50) AS size,
        (ARRAY['PROMO', 'STANDARD', 'SMALL', 'MEDIUM', 'LARGE'])[1 + draw(i, 5, 5)] || ' PLATED' AS type
    FROM generate_series(1, 400) i;

CREATE TABLE orders AS
    SELECT i AS orderkey, 1 + draw(i, 6, 300) AS custkey, date '1992-01-01' + draw(i, 7, 2400) AS orderdate,
        1 + draw(i, 8, 5) || '-PRIORITY' AS orderpriority
    FROM generate_series(1, 3000) i;

CREATE TABLE lineitem AS
    SELECT orderkey, line AS linenumber, 1 + draw(n, 9, 400) AS partkey, (1 + draw(n, 10, 50))::numeric AS quantity,
        (900 + draw(n, 11, 100000) / 100.0)::numeric(12, 2) AS extendedprice, (draw(n, 12, 11) / 100.0)::numeric(4, 2) AS discount,
        (draw(n, 13, 9) / 100.0)::numeric(4, 2) AS tax, substr('RAN', 1 + draw(n, 14, 3), 1) AS returnflag,
        substr('OF', 1 + draw(n, 15, 2), 1) AS linestatus, orderdate + 1 + draw(n, 16, 120) AS shipdate,
        orderdate + 30 + draw(n, 17, 60) AS commitdate, orderdate + 2 + draw(n, 18, 150) AS receiptdate,
        (ARRAY['AIR', 'MAIL', 'RAIL', 'SHIP', 'TRUCK'])[1 + draw(n, 19, 5)] AS shipmode
    FROM orders, generate_series(1, 4) line, LATERAL (SELECT orderkey * 4 + line AS n) numbered;

ALTER TABLE customer ADD PRIMARY KEY (custkey);
ALTER TABLE part ADD PRIMARY KEY (partkey);
ALTER TABLE orders ADD PRIMARY KEY (orderkey);
ALTER TABLE lineitem ADD PRIMARY KEY (orderkey, linenumber);
VACUUM ANALYZE;
