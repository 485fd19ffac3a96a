//! Texts for the reasons why something was left alone.

/// Returns a reason's code as half a sentence; the code itself if this version of whet does not have it.
#[must_use]
pub fn reason_in_words(code: &str) -> String {
    code::Refusal::from_code(code).map_or_else(|| code.to_owned(), |r| r.why().to_owned())
}
