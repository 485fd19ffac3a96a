//! Names for people, and the search for a function by a typed name.

use cpp_demangle::{DemangleOptions, Symbol};
use std::fmt::{self, Write};

/// A name longer than this is shown as it is in the file. Names come from untrusted files, and a short
/// mangled name can expand without bound.
const LONGEST: usize = 4096;

/// Returns a symbol's name as in the source, with parameters; `None` if it is not mangled. A suffix such as
/// `.cold` stays.
#[must_use]
pub fn demangled(name: &str) -> Option<String> {
    read(name, &DemangleOptions::new().no_return_type())
}

/// Returns the name without parameters.
fn plain(name: &str) -> Option<String> {
    read(name, &DemangleOptions::new().no_return_type().no_params())
}

/// Returns the short form for narrow places: the name without parameters, or as it is.
#[must_use]
pub fn short(name: &str) -> String {
    plain(name).unwrap_or_else(|| name.to_owned())
}

fn read(name: &str, how: &DemangleOptions) -> Option<String> {
    if name.len() > LONGEST || !(name.starts_with("_Z") || name.starts_with("_R")) {
        return None;
    }
    let mut out = Limited(String::new());
    match rustc_demangle::try_demangle(name) {
        // The alternate form omits the hash.
        Ok(rust) => write!(out, "{rust:#}").ok()?,
        Err(_) => Symbol::new(name.as_bytes()).ok()?.structured_demangle(&mut out, how).ok()?,
    }
    Some(out.0).filter(|s| !s.is_empty())
}

/// A string of limited length.
struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        if self.0.len() + s.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(s);
        Ok(())
    }
}

/// How well a name matches what a user typed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Fit {
    /// The names are equal, mangled or not.
    Whole,
    /// The names are equal except for parameters.
    WithoutParameters,
    /// The typed text is the last part of the name's path.
    LastPart,
    /// The typed text occurs in the name.
    Part,
}

impl Fit {
    /// All values, best first.
    pub(crate) const ALL: [Fit; 4] = [Fit::Whole, Fit::WithoutParameters, Fit::LastPart, Fit::Part];

    /// Returns how well `name` matches the typed name `wanted`, if it does.
    pub(crate) fn of(name: &str, wanted: &str) -> Option<Self> {
        if name == wanted {
            return Some(Fit::Whole);
        }
        let Some(plain) = plain(name) else {
            return name.contains(wanted).then_some(Fit::Part);
        };
        let whole = demangled(name);
        if whole.as_deref() == Some(wanted) {
            Some(Fit::Whole)
        } else if plain == wanted {
            Some(Fit::WithoutParameters)
        } else if plain.strip_suffix(wanted).is_some_and(|path| path.ends_with("::")) {
            Some(Fit::LastPart)
        } else {
            let has = name.contains(wanted) || whole.is_some_and(|w| w.contains(wanted));
            has.then_some(Fit::Part)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_demangled() {
        assert_eq!(demangled("_ZN11ha_innobase10index_readEPhPKhj16ha_rkey_function").unwrap(), {
            "ha_innobase::index_read(unsigned char*, unsigned char const*, unsigned int, ha_rkey_function)"
        });
        assert_eq!(short("_ZN11ha_innobase10index_readEPhPKhj16ha_rkey_function"), "ha_innobase::index_read");
        assert_eq!(demangled("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE").unwrap(), {
            "core::fmt::Write::write_fmt"
        });
        assert_eq!((demangled("main"), demangled("_Zjunk"), demangled("")), (None, None, None));
        assert_eq!(short("libc.so.6+0x1234"), "libc.so.6+0x1234");
    }

    #[test]
    fn typed_names_are_matched() {
        let name = "_ZN11ha_innobase10index_readEPhPKhj16ha_rkey_function";
        let fit = |wanted| Fit::of(name, wanted);
        assert_eq!(fit(name), Some(Fit::Whole));
        let whole = demangled(name).unwrap();
        assert_eq!(fit(&whole), Some(Fit::Whole));
        assert_eq!(fit("ha_innobase::index_read"), Some(Fit::WithoutParameters));
        assert_eq!(fit("index_read"), Some(Fit::LastPart));
        assert_eq!(fit("dex_re"), Some(Fit::Part));
        assert_eq!(fit("index_read_map"), None);
        assert_eq!(Fit::of("row_search_mvcc", "search"), Some(Fit::Part));
    }

    /// The one-second form of the fuzz target: any name is demangled or left, and the result is bounded.
    #[test]
    fn any_name_is_demangled_or_left() {
        let parts = [
            "_Z", "_R", "N", "S_", "S0_", "S1_", "St", "I", "E", "3foo", "T_", "J", "DpT_", "F", "v", "P",
            "17h",
        ];
        arbtest::arbtest(|u| {
            let mut name = (*u.choose(&["_Z", "_ZN", "_R", "_RNv"])?).to_owned();
            for _ in 0..u.int_in_range(0..=60)? {
                name.push_str(u.choose(&parts)?);
            }
            assert!(demangled(&name).is_none_or(|s| s.len() <= LONGEST));
            let any: String = u.arbitrary()?;
            let _ = Fit::of(&format!("_Z{any}"), "x");
            Ok(())
        })
        .budget_ms(1000);
    }
}
