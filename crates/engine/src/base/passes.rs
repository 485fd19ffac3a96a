//! The optimizations that make clones faster than originals. Each can be left out, so that its share of the
//! gain can be measured.

use std::fmt;
use std::str::FromStr;

/// One optimization.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// Orders the blocks of a function by control flow, else by address.
    Blocks,
    /// Puts warm blocks behind the hot blocks of all functions, else they stay with their function.
    Split,
    /// Puts functions that call each other side by side, else in the order of addresses.
    Functions,
    /// Unrolls short loops, so that the back edge is taken less often.
    Loops,
    /// Inlines short functions at direct calls.
    Inlining,
    /// Inlines the hot path of functions with branches too. Other paths leave for the rest of the function.
    SideExits,
    /// Devirtualizes calls through tables: a guard compares the table and calls its usual function directly.
    Guards,
    /// Makes calls through stubs go directly to the stub's destination.
    Stubs,
    /// Makes direct calls in originals lead to clones.
    Calls,
    /// Makes virtual tables and slots of procedure linkage tables lead to clones.
    Tables,
    /// Rebuilds functions of libraries too, not only the program's.
    Libraries,
    /// Puts clones on huge pages, if there are any.
    HugePages,
}

impl Pass {
    /// All passes.
    pub const ALL: [Pass; 12] = [
        Pass::Blocks,
        Pass::Split,
        Pass::Functions,
        Pass::Loops,
        Pass::Inlining,
        Pass::SideExits,
        Pass::Guards,
        Pass::Stubs,
        Pass::Calls,
        Pass::Tables,
        Pass::Libraries,
        Pass::HugePages,
    ];

    /// Returns its name on the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Pass::Blocks => "blocks",
            Pass::Split => "split",
            Pass::Functions => "functions",
            Pass::Loops => "loops",
            Pass::Inlining => "inlining",
            Pass::SideExits => "side-exits",
            Pass::Guards => "guards",
            Pass::Stubs => "stubs",
            Pass::Calls => "calls",
            Pass::Tables => "tables",
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
            format!("there is no pass {word:?}; the passes are: {all}")
        })
    }
}

/// A set of passes; by default all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Passes {
    /// A bit for each pass that is left out.
    left_out: u16,
}

impl Passes {
    /// Returns all passes except these.
    #[must_use]
    pub fn without(some: &[Pass]) -> Self {
        Self { left_out: some.iter().fold(0, |bits, &p| bits | 1 << p as u16) }
    }

    /// Returns the passes that are left out.
    pub fn left_out(self) -> impl Iterator<Item = Pass> {
        Pass::ALL.into_iter().filter(move |&p| !self.has(p))
    }

    /// Returns whether a pass is in the set.
    #[must_use]
    pub fn has(self, pass: Pass) -> bool {
        self.left_out & (1 << pass as u16) == 0
    }
}

/// The layout of clones.
#[derive(Clone, Copy, Default, Debug)]
pub struct Style {
    /// The seed of a random layout; `None` orders by counts.
    pub shuffle: Option<u64>,
    /// The passes to apply.
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
