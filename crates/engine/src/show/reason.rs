//! Why something was left alone, in words.

/// What a reason's code means, as half a sentence; the code itself where this whet does not know it.
#[must_use]
pub fn reason_in_words(code: &str) -> String {
    code::Refusal::from_code(code).map_or_else(|| code.to_owned(), |r| r.why().to_owned())
}
