//! A graph as text, for golden tests and bug reports: [`crate::Cfg`] prints itself, and [`parse()`] parses the text.
//!
//! ```text
//! function 0x1000
//! part 0x1000..0x1016
//! functions 0x2000
//! block b0 0x1000
//!   83 ff 03                        ; cmp $3,%edi
//!   77 0d                           ; ja 0x1012
//!   cond a b2 else b1
//! block b1 0x1005
//!   ff 24 fd 00 20 00 00            ; jmp *0x2000(,%rdi,8)
//!   switch t0
//! block b2 0x1012 pad
//!   e9 e9 0f 00 00                  ; jmp 0x2000
//!   jump 0x2000
//! table t0 0x2000 absolute8
//!   load 2 differs 3..3
//!   to b2 0x3000
//! ```
//!
//! Addresses are hexadecimal, in bytes; numbers of blocks, tables and instructions are decimal. A destination
//! is a block or, outside, an address. An instruction is written as its bytes; the parser decodes them again,
//! at the address that follows from the block's. `functions` are the outside destinations that are known to
//! be functions, rising. Text from `;` to the end of the line is a comment. The ends of blocks: `fall D`,
//! `jump D`, `cond CC D else D`, `short D else D`, `switch T`, `indirect`, `return`, `noreturn A`, `trap`. A
//! table is `absolute8` or `relative4 BASE`; a `load` line (`load I [base A] differs I..I`) means that it may
//! be cloned.
//!
//! The round trip is exact for every graph that [`crate::verify()`] accepts. The parser checks only what it
//! needs to build a graph; the verifier checks whether that graph is sound.

mod parse;
mod print;

pub use parse::{ParseError, parse};

/// Condition codes by their names in the text.
const CONDITIONS: [(&str, iced_x86::ConditionCode); 16] = {
    use iced_x86::ConditionCode as C;
    [
        ("o", C::o),
        ("no", C::no),
        ("b", C::b),
        ("ae", C::ae),
        ("e", C::e),
        ("ne", C::ne),
        ("be", C::be),
        ("a", C::a),
        ("s", C::s),
        ("ns", C::ns),
        ("p", C::p),
        ("np", C::np),
        ("l", C::l),
        ("ge", C::ge),
        ("le", C::le),
        ("g", C::g),
    ]
};

#[cfg(test)]
mod tests;
