//! Named fragments of code.

use addr::AvmaRange;

/// The kind of a fragment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// The hot blocks of a clone.
    Hot,
    /// The warm blocks of a clone.
    Warm,
    /// The first fragment of a clone that counts.
    Counting,
    /// A further fragment of a clone that counts.
    CountingWarm,
    /// A routine of whet's own.
    Routine,
}

impl Part {
    /// Returns the suffix that a symbol has behind the function's name. It has the form of compilers' clone
    /// suffixes, so that demanglers recognise it.
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

/// A contiguous run of code, with a name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Fragment {
    /// Its addresses.
    pub range: AvmaRange,
    /// Its kind.
    pub part: Part,
    /// The linkage name (mangled name) of its function.
    pub name: String,
}

impl Fragment {
    /// Returns the symbol's name: the linkage name with the suffix of the fragment's kind.
    #[must_use]
    pub fn symbol(&self) -> String {
        format!("{}{}", clean(&self.name), self.part.suffix())
    }

    /// Returns the name for people: demangled, without parameters, with the same suffix.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{}{}", demangled(&clean(&self.name)), self.part.suffix())
    }
}

/// Replaces control characters, which would end a line or a string. Names may come from foreign files.
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
