package main

var x uint64

func main() {
	for {
		x++
	}
}
