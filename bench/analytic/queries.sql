-- Six queries like TPC-H's, as one transaction of pgbench, so that each transaction is the same work.

-- Pricing summary: one scan, many sums.
\set days random(60, 120)
SELECT returnflag, linestatus, sum(quantity), sum(extendedprice), sum(extendedprice * (1 - discount)),
    sum(extendedprice * (1 - discount) * (1 + tax)), avg(quantity), avg(extendedprice), avg(discount), count(*)
FROM lineitem WHERE shipdate <= date '1998-09-01' - :days::int
GROUP BY returnflag, linestatus ORDER BY returnflag, linestatus;

-- Shipping priority: a join of three tables, the ten largest groups.
\set day random(1, 31)
SELECT l.orderkey, sum(extendedprice * (1 - discount)) AS revenue, orderdate
FROM customer c JOIN orders o USING (custkey) JOIN lineitem l USING (orderkey)
WHERE mktsegment = 'BUILDING' AND orderdate < date '1995-03-01' + :day::int AND shipdate > date '1995-03-01' + :day::int
GROUP BY l.orderkey, orderdate ORDER BY revenue DESC, orderdate LIMIT 10;

-- Revenue change: one scan with a narrow filter.
\set year random(1993, 1997)
SELECT sum(extendedprice * discount) FROM lineitem
WHERE shipdate >= make_date(:year::int, 1, 1) AND shipdate < make_date(:year::int + 1, 1, 1)
    AND discount BETWEEN 0.05 AND 0.07 AND quantity < 24;

-- Shipping modes: a join and conditional counts.
\set year random(1993, 1997)
SELECT shipmode, sum(CASE WHEN orderpriority IN ('1-PRIORITY', '2-PRIORITY') THEN 1 ELSE 0 END) AS high, count(*)
FROM orders JOIN lineitem USING (orderkey)
WHERE shipmode IN ('MAIL', 'SHIP') AND commitdate < receiptdate AND shipdate < commitdate
    AND receiptdate >= make_date(:year::int, 1, 1) AND receiptdate < make_date(:year::int + 1, 1, 1)
GROUP BY shipmode ORDER BY shipmode;

-- Promotion effect: a join, strings compared by LIKE.
\set month random(0, 59)
SELECT 100 * sum(CASE WHEN type LIKE 'PROMO%' THEN extendedprice * (1 - discount) ELSE 0 END)
    / sum(extendedprice * (1 - discount))
FROM lineitem JOIN part USING (partkey)
WHERE shipdate >= date '1993-01-01' + :month::int * interval '1 month'
    AND shipdate < date '1993-01-01' + (:month::int + 1) * interval '1 month';

-- Large orders: a group of all lines, its result joined.
\set least random(150, 160)
SELECT name, o.orderkey, orderdate, total FROM
    (SELECT orderkey, sum(quantity) AS total FROM lineitem GROUP BY orderkey HAVING sum(quantity) > :least) large
    JOIN orders o USING (orderkey) JOIN customer c USING (custkey)
ORDER BY total DESC, orderdate LIMIT 100;
