//! What executions said.

use addr::Avma;
use std::collections::BTreeMap;
use std::fmt;
use tracee::Sig;

/// How the comparison of one function came to its end, with no mismatch until then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// Both returned to the caller.
    Returned,
    /// Both left the frame in another way: a jump over frames, another stack.
    Left,
    /// As many instructions as were allowed.
    Limit,
    /// Both are about to execute an instruction that reaches out of a twin or asks the clock or the CPU.
    Instruction(String),
    /// Both are about to use memory that they share with the target.
    SharedMemory,
    /// The program decided something by a code address (the unwinder does that).
    ByCodeAddress,
    /// Both raised the same signal.
    Signal(Sig),
    /// A twin was killed by somebody else.
    Lost,
}

impl End {
    /// A name to count by.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            End::Returned => "returned".to_owned(),
            End::Left => "left".to_owned(),
            End::Limit => "limit".to_owned(),
            End::Instruction(i) => i.clone(),
            End::SharedMemory => "shared memory".to_owned(),
            End::ByCodeAddress => "by code address".to_owned(),
            End::Signal(s) => format!("signal {s}"),
            End::Lost => "lost".to_owned(),
        }
    }
}

/// What was not the same. The first of each pair is the original's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// They went to places that do not stand for each other.
    Path,
    /// A general register.
    Register {
        /// Its name.
        name: &'static str,
        /// Its values.
        values: (u64, u64),
    },
    /// The flags.
    Flags {
        /// Their values.
        values: (u64, u64),
    },
    /// The bases of segments.
    Segments,
    /// The extended state.
    Vectors {
        /// Offset of the first difference in the XSAVE area. Bytes.
        at: usize,
    },
    /// Something was read that is not to be read any more: a register that may differ between the read of a cloned jump table and
    /// its jump, after that; what only the clone changed; what a call pushed whose callee runs in place.
    Dead {
        /// Its name.
        name: &'static str,
    },
    /// What is done for a call in the clone is not what the call does.
    Inline {
        /// In words.
        what: &'static str,
    },
    /// The place of a memory operand that is written.
    Place {
        /// Where they write.
        values: (Avma, Avma),
    },
    /// A word of memory.
    Memory {
        /// Where it is.
        at: Avma,
        /// Its values.
        values: (u64, u64),
    },
    /// Only one raised a signal, or each another.
    Signals {
        /// Which.
        values: (Option<Sig>, Option<Sig>),
    },
    /// The clone's tables give other frames than the original's.
    Frames {
        /// In words.
        what: String,
    },
}

/// One function whose clone did something else than the original.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The entry of the original that was examined.
    pub original: Avma,
    /// Its name.
    pub name: String,
    /// What was not the same.
    pub difference: Difference,
    /// Where the twins then were.
    pub at: (Avma, Avma),
    /// How many pairs of instructions were equal before.
    pub after: u64,
    /// The last instructions of both, as text, oldest first.
    pub trail: Vec<(String, String)>,
    /// General registers that differ.
    pub registers: Vec<(&'static str, u64, u64)>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} ({}), after {} instructions: {:x?}",
            self.name, self.original, self.after, self.difference
        )?;
        writeln!(f, "  original at {}, clone at {}", self.at.0, self.at.1)?;
        for (a, b) in &self.trail {
            writeln!(f, "  {a:<60} | {b}")?;
        }
        for (name, a, b) in &self.registers {
            writeln!(f, "  {name}: {a:#x} | {b:#x}")?;
        }
        Ok(())
    }
}

/// What all executions said.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Entries of the originals that were examined from their entry on, each once.
    pub examined: Vec<Avma>,
    /// How many clones had instructions compared, those called by the examined ones included.
    pub clones_run: usize,
    /// How many clones the target has (of the newest generation).
    pub clones: usize,
    /// Pairs of instructions compared.
    pub instructions: u64,
    /// Those of them of which the second was in a clone.
    pub clone_instructions: u64,
    /// Those of which that was a further copy of a loop.
    pub again: u64,
    /// Different clone instructions among those.
    pub distinct: usize,
    /// How often the stack was unwound both ways.
    pub unwound: u64,
    /// How often that could not be compared, as the original has no rule there that can be followed.
    pub not_unwound: u64,
    /// Jumps and nops of clones only that were executed.
    pub extra: u64,
    /// Jumps of originals only that were executed, in stubs that clones pass by too.
    pub dropped: u64,
    /// Clone instructions between the read of a cloned jump table and its jump.
    pub unmovable: u64,
    /// Calls whose callees ran in place, to their end or not. Their instructions are among those compared.
    pub inlined: u64,
    /// Those of them that left the way through the callee.
    pub exits: u64,
    /// Guards before indirect calls.
    pub guards: u64,
    /// Those of them that did not hold.
    pub guards_failed: u64,
    /// How the comparisons ended.
    pub ends: BTreeMap<String, usize>,
    /// Where comparisons ended as a program decided something by a code address; shown as mismatches are.
    pub by_code_address: Vec<Mismatch>,
    /// What was not the same.
    pub mismatches: Vec<Mismatch>,
}

impl Report {
    /// Takes in what another examination said; clones count once for each.
    pub fn add(&mut self, other: &Report) {
        self.examined.extend(&other.examined);
        self.clones_run += other.clones_run;
        self.clones += other.clones;
        self.instructions += other.instructions;
        self.clone_instructions += other.clone_instructions;
        self.again += other.again;
        self.distinct += other.distinct;
        self.unwound += other.unwound;
        self.not_unwound += other.not_unwound;
        self.extra += other.extra;
        self.dropped += other.dropped;
        self.unmovable += other.unmovable;
        self.inlined += other.inlined;
        self.exits += other.exits;
        self.guards += other.guards;
        self.guards_failed += other.guards_failed;
        for (end, n) in &other.ends {
            *self.ends.entry(end.clone()).or_default() += n;
        }
        self.by_code_address.extend_from_slice(&other.by_code_address);
        self.mismatches.extend_from_slice(&other.mismatches);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} functions examined, {} of {} clones run; {} pairs of instructions compared, {} in clones ({} distinct, {} in further copies of loops), {} \
             in the window of a table; {} extra, {} dropped; {} calls answered in place, {} of them not to their end, {} guards of which {} did not hold; \
             unwound {} times, not {} times; {} mismatches; ends {:?}",
            self.examined.len(),
            self.clones_run,
            self.clones,
            self.instructions,
            self.clone_instructions,
            self.distinct,
            self.again,
            self.unmovable,
            self.extra,
            self.dropped,
            self.inlined,
            self.exits,
            self.guards,
            self.guards_failed,
            self.unwound,
            self.not_unwound,
            self.mismatches.len(),
            self.ends
        )
    }
}
