//! What makes clones faster than originals, each by itself: each can be left out, so that its share of the gain can be
//! measured.

use std::fmt;
use std::str::FromStr;

/// One thing that is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// The blocks of a function lie in the order in which control goes through them, else by address.
    Blocks,
    /// Blocks that run rarely lie behind those of all functions that run often, else with their function.
    Split,
    /// Functions that call each other lie side by side, else by address.
    Functions,
    /// Short loops go round several times between two jumps back.
    Loops,
    /// Direct calls of short functions are answered in place.
    InPlace,
    /// So are those of functions with branches, which leave for the rest of the function where it has to run.
    SideExits,
    /// Calls through tables go to the one function that they mostly lead to, behind a compare.
    Guards,
    /// Calls through stubs go where the stub leads.
    Stubs,
    /// Direct calls in originals lead to clones.
    Calls,
    /// Virtual tables and slots of procedure linkage tables lead to clones.
    Words,
    /// Functions of libraries are rebuilt as well as the program's.
    Libraries,
    /// Clones lie in huge pages, where there are any.
    HugePages,
}

impl Pass {
    /// All of them.
    pub const ALL: [Pass; 12] = [
        Pass::Blocks,
        Pass::Split,
        Pass::Functions,
        Pass::Loops,
        Pass::InPlace,
        Pass::SideExits,
        Pass::Guards,
        Pass::Stubs,
        Pass::Calls,
        Pass::Words,
        Pass::Libraries,
        Pass::HugePages,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Pass::Blocks => "blocks",
            Pass::Split => "split",
            Pass::Functions => "functions",
            Pass::Loops => "loops",
            Pass::InPlace => "in-place",
            Pass::SideExits => "side-exits",
            Pass::Guards => "guards",
            Pass::Stubs => "stubs",
            Pass::Calls => "calls",
            Pass::Words => "words",
            Pass::Libraries => "libraries",
            Pass::HugePages => "huge-pages",
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Pass {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|p| p.word() == word).ok_or_else(|| {
            let all = Self::ALL.map(Pass::word).join(", ");
            format!("there is no pass {word:?}; these there are: {all}")
        })
    }
}

/// Some of all passes; by default all of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Passes {
    /// A bit for each that is left out.
    left_out: u16,
}

impl Passes {
    /// All but these.
    #[must_use]
    pub fn without(some: &[Pass]) -> Self {
        Self { left_out: some.iter().fold(0, |bits, &p| bits | 1 << p as u16) }
    }

    /// Those that are not among them.
    pub fn left_out(self) -> impl Iterator<Item = Pass> {
        Pass::ALL.into_iter().filter(move |&p| !self.has(p))
    }

    /// Whether it is one of them.
    #[must_use]
    pub fn has(self, pass: Pass) -> bool {
        self.left_out & (1 << pass as u16) == 0
    }
}

/// How clones are laid out.
#[derive(Clone, Copy, Default, Debug)]
pub struct Style {
    /// At random, from this seed, not by counts.
    pub shuffle: Option<u64>,
    /// With all that makes them faster, or some of it.
    pub passes: Passes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_can_be_left_out_alone() {
        for (i, left_out) in Pass::ALL.into_iter().enumerate() {
            assert_eq!((left_out as usize, left_out.word().parse()), (i, Ok(left_out)));
            let others = Passes::without(&[left_out]);
            assert!(Pass::ALL.into_iter().all(|p| others.has(p) == (p != left_out)));
            assert!(Passes::default().has(left_out) && others.left_out().eq([left_out]));
        }
        assert!("everything".parse::<Pass>().unwrap_err().contains("side-exits, guards"));
    }
}
