//! Tests of the crate with real programs and damaged ones.

#[cfg(test)]
mod common;
#[cfg(test)]
mod live;
#[cfg(test)]
mod moved_headers;
#[cfg(test)]
mod mutate;
#[cfg(test)]
mod vtables;
