<?php
// Units of work for an interpreter: calls, objects, hash tables and strings. Prints a line for each unit.
class Account
{
    public $name;
    public $sum = 0;

    public function __construct($name)
    {
        $this->name = $name;
    }

    public function add($amount)
    {
        $this->sum += $amount;
    }
}

function fibonacci($n)
{
    return $n < 2 ? $n : fibonacci($n - 1) + fibonacci($n - 2);
}

function unit()
{
    $accounts = [];
    for ($i = 0; $i < 400; $i++) {
        $name = "account" . strval($i % 50);
        if (!isset($accounts[$name])) {
            $accounts[$name] = new Account($name);
        }
        $accounts[$name]->add($i);
    }
    $words = array_map(fn($a) => $a->name . "=" . strval($a->sum), array_values($accounts));
    sort($words);
    return count(explode(",", implode(",", $words))) + fibonacci(12);
}

while (true) {
    if (unit() !== 194) {
        fwrite(STDERR, "wrong result");
        exit(1);
    }
    echo "unit\n";
}
