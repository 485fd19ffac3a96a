//! Families: a parent with the children that it forks, which run the same program.
//!
//! A forked child has its parent's address space, so clones that were built for the parent fit the child. A
//! child that is forked later inherits them with journals and tables. A child that was forked before gets a
//! copy of the parent's newest generation, made from the parent's journal alone ([`copy`]). So whichever whet
//! comes later can bring a family into one state ([`align`]).

pub(crate) mod align;
pub(crate) mod control;
pub(crate) mod copy;
pub(crate) mod facts;
pub(crate) mod fit;
pub(crate) mod kin;
pub(crate) mod look;
pub(crate) mod members;
