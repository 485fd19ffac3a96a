//! A run of code with a name.

use addr::AvmaRange;

/// Which part of what a fragment is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// A clone, where it is entered and runs often.
    Hot,
    /// What of a clone runs rarely.
    Warm,
    /// A clone that counted.
    Counting,
    /// What of such a clone lies apart.
    CountingWarm,
    /// A routine of whet's own.
    Routine,
}

impl Part {
    /// What its symbol has behind the function's name. In the form of compilers' clone suffixes, so that demanglers know them.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            Part::Hot => ".whet",
            Part::Warm => ".whet.warm",
            Part::Counting => ".whet.counting",
            Part::CountingWarm => ".whet.counting.warm",
            Part::Routine => "",
        }
    }
}

/// A run of code with a name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Fragment {
    /// Where it is.
    pub range: AvmaRange,
    /// Which part it is.
    pub part: Part,
    /// The name of its function, as linkers know it.
    pub name: String,
}

impl Fragment {
    /// The symbol of it.
    #[must_use]
    pub fn symbol(&self) -> String {
        format!("{}{}", clean(&self.name), self.part.suffix())
    }

    /// The same for people: the name demangled, without parameters.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{}{}", demangled(&clean(&self.name)), self.part.suffix())
    }
}

/// Without what would end a line or a string: names may be read from foreign files.
fn clean(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let text = cpp_demangle::Symbol::new(name).ok().and_then(|s| s.demangle_with_options(&options).ok());
    text.unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use addr::Avma;

    fn fragment(name: &str, part: Part) -> Fragment {
        Fragment { range: AvmaRange::with_len(Avma(0x1000), 16), part, name: name.to_owned() }
    }

    #[test]
    fn names() {
        let f = fragment("_ZN7handler11ha_rnd_nextEPh", Part::Hot);
        assert_eq!(f.symbol(), "_ZN7handler11ha_rnd_nextEPh.whet");
        assert_eq!(f.label(), "handler::ha_rnd_next.whet");
        let f = fragment("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", Part::Warm);
        assert_eq!(f.label(), "core::fmt::Write::write_fmt.whet.warm");
        assert_eq!(fragment("row_search_mvcc", Part::Counting).label(), "row_search_mvcc.whet.counting");
        let evil = fragment("a\0b\n1000 10 c", Part::Hot);
        assert_eq!((evil.symbol(), evil.label()), ("a?b?1000 10 c.whet".into(), "a?b?1000 10 c.whet".into()));
    }
}
