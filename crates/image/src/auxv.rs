//! The auxiliary vector, by which the kernel informs a program about itself: `/proc/PID/auxv` (getauxval(3)).

use crate::bytes::u64_at;
use addr::Avma;

/// The facts that distinguish the main program, the interpreter and the vDSO from the other modules.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MainHint {
    /// The path to which `/proc/PID/exe` links, with or without ` (deleted)` at its end.
    pub exe_path: Option<String>,
    /// `AT_PHDR`: the address of the main program's program headers.
    pub at_phdr: Option<Avma>,
    /// `AT_BASE`: the address at which the interpreter was mapped; `None` in a static program.
    pub at_base: Option<Avma>,
    /// `AT_SYSINFO_EHDR`: the address of the vDSO.
    pub vdso: Option<Avma>,
}

const AT_NULL: u64 = 0;
const AT_PHDR: u64 = 3;
const AT_BASE: u64 = 7;
const AT_SYSINFO_EHDR: u64 = 33;

/// Parses the bytes of `/proc/PID/auxv`: pairs of 64-bit words up to `AT_NULL`. Values that are missing or
/// zero become `None`. [`MainHint::exe_path`] stays `None`, because the vector does not contain it.
#[must_use]
pub fn parse(bytes: &[u8]) -> MainHint {
    let mut hint = MainHint::default();
    for pair in bytes.chunks_exact(16) {
        let (Some(tag), Some(value)) = (u64_at(pair, 0), u64_at(pair, 8)) else { break };
        let value = Some(Avma(value)).filter(|v| v.0 != 0);
        match tag {
            AT_NULL => break,
            AT_PHDR => hint.at_phdr = value,
            AT_BASE => hint.at_base = value,
            AT_SYSINFO_EHDR => hint.vdso = value,
            _ => {}
        }
    }
    hint
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_up_to_the_null() {
        let words: [u64; 10] = [AT_PHDR, 0x40, AT_BASE, 0, AT_SYSINFO_EHDR, 0x7000, AT_NULL, 0, AT_BASE, 9];
        let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let hint = parse(&bytes);
        assert_eq!(hint.at_phdr, Some(Avma(0x40)));
        assert_eq!(hint.at_base, None);
        assert_eq!(hint.vdso, Some(Avma(0x7000)));
        bytes.truncate(20);
        assert_eq!(parse(&bytes), MainHint { at_phdr: Some(Avma(0x40)), ..MainHint::default() });
    }
}
