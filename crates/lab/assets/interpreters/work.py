# Units of work for an interpreter: calls, objects, hash tables and strings. Prints a line for each unit.
import sys


class Account:
    def __init__(self, name):
        self.name = name
        self.sum = 0

    def add(self, amount):
        self.sum += amount


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def unit():
    accounts = {}
    for i in range(400):
        name = "account" + str(i % 50)
        if name not in accounts:
            accounts[name] = Account(name)
        accounts[name].add(i)
    words = ",".join(sorted(a.name + "=" + str(a.sum) for a in accounts.values()))
    return len(words.split(",")) + fibonacci(12)


while True:
    if unit() != 194:
        sys.exit("wrong result")
    print("unit", flush=True)
