//! Analysis of whole programs, real, mangled and small ones.

mod bounds;
mod mangled;
mod real;
mod small;
mod support;
mod tables;
mod whole;
