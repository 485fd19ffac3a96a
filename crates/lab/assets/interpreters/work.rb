# Units of work for an interpreter: calls, objects, hash tables and strings. Prints a line for each unit.
class Account
  attr_reader :name, :sum

  def initialize(name)
    @name = name
    @sum = 0
  end

  def add(amount)
    @sum += amount
  end
end

def fibonacci(n)
  n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2)
end

def unit
  accounts = {}
  400.times do |i|
    name = "account" + (i % 50).to_s
    accounts[name] = Account.new(name) unless accounts.key?(name)
    accounts[name].add(i)
  end
  words = accounts.values.map { |a| a.name + "=" + a.sum.to_s }.sort.join(",")
  words.split(",").length + fibonacci(12)
end

$stdout.sync = true
loop do
  abort("wrong result") if unit != 194
  puts "unit"
end
