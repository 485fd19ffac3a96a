//! What code is loaded, and what each function does. Pure.

pub(crate) mod callees;
pub(crate) mod caller_address;
pub(crate) mod covering;
pub(crate) mod gs;
pub(crate) mod module_code;
pub(crate) mod program;
