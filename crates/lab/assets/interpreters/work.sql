-- Units of work for SQLite: point reads, a join, groups, sorting and strings. Prints a line for each unit.
CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT NOT NULL);
CREATE TABLE entry (id INTEGER PRIMARY KEY, account INTEGER NOT NULL, day INTEGER NOT NULL, amount INTEGER NOT NULL);
CREATE INDEX entry_account ON entry (account, day);
WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 200)
INSERT INTO account SELECT i, 'owner' || (i % 50) FROM n;
WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
INSERT INTO entry SELECT i, i * 7 % 200 + 1, i % 365, i * 37 % 1000 FROM n;

-- A condition on `i` that always holds makes SQLite compute each unit anew. A wrong result is an overflow, which ends the
-- program. Each line fills the buffer of the output, which therefore is written at once.
WITH RECURSIVE unit (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM unit)
SELECT printf('%-4095s', CASE (
    SELECT sum(length(line)) FROM (
        SELECT owner || '=' || sum(amount) || ':' || group_concat(upper(substr(owner, 6)) || day, ',') AS line
        FROM account JOIN entry ON entry.account = account.id
        WHERE amount >= -i GROUP BY owner ORDER BY sum(amount) DESC, owner
    )
) WHEN 11582 THEN 'unit' ELSE abs(-9223372036854775807 - 1) END) FROM unit;
