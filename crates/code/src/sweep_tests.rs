use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn r(a: u64, b: u64) -> AvmaRange {
    AvmaRange::new(Avma(a), Avma(b))
}

fn one(at: u64, bytes: &[u8]) -> Branches {
    sweep(&[Piece { range: AvmaRange::with_len(Avma(at), bytes.len() as u64), bytes }])
}

#[test]
fn each_kind_of_mention_is_found() {
    let code = [
        0xeb, 0x02, // 1000: jmp 1004
        0x74, 0xfc, // 1002: je 1000
        0xe2, 0xfe, // 1004: loop 1004
        0xe8, 0x05, 0, 0, 0, // 1006: call 1010
        0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff, // 100b: lea rax, [rip-7] = 100b
        0x0f, 0x05, // 1012: syscall
        0xff, 0xe0, // 1014: jmp rax
        0xc7, 0xf8, 0xe4, 0xff, 0xff, 0xff, // 1016: xbegin 1000
        0x48, 0x8d, 0x05, 0, 0, 0, 0x10, // 101c: lea rax, [rip+10000000], not code
        0xbf, 0x02, 0x10, 0, 0, // 1023: mov edi, 1002
        0x68, 0x04, 0x10, 0, 0, // 1028: push 1004
    ];
    let b = one(0x1000, &code);
    let all = r(0, u64::MAX);
    assert_eq!(
        b.jumps_into(all).map(|(f, t)| (f.0, t.0)).collect::<Vec<_>>(),
        [(0x1002, 0x1000), (0x1016, 0x1000), (0x1000, 0x1004), (0x1004, 0x1004)]
    );
    assert_eq!(b.calls_from(all), [DirectCall { from: Avma(0x1006), to: Avma(0x1010), len: 5 }]);
    assert_eq!(b.calls_from(all)[0].end(), Avma(0x100b));
    assert_eq!(b.calls_to(Avma(0x1010)).collect::<Vec<_>>(), [Avma(0x1006)]);
    assert_eq!(b.calls_from(r(0x1007, 0x2000)), []);
    assert_eq!(
        b.taken_in(all).map(|(f, t)| (f.0, t.0)).collect::<Vec<_>>(),
        [(0x1023, 0x1002), (0x1028, 0x1004), (0x100b, 0x100b)]
    );
    assert!(b.is_taken(Avma(0x100b)) && !b.is_taken(Avma(0x100c)));
    assert_eq!(b.instructions(), 11);
    assert_eq!(b.invalid(), 0);
}

#[test]
fn code_that_instructions_read_is_found() {
    let code = [
        0x80, 0x3d, 0xf9, 0xff, 0xff, 0xff, 0x00, // 1000: cmp byte ptr [rip-7], 0 = 1000
        0x48, 0x8b, 0x05, 0x19, 0, 0, 0, // 1007: mov rax, [rip+19] = 1027
        0x48, 0x8b, 0x04, 0x25, 0x10, 0x10, 0, 0, // 100e: mov rax, [1010]
        0x64, 0x48, 0x8b, 0x04, 0x25, 0x20, 0x10, 0, 0, // 1016: mov rax, fs:[1020], not code
        0x48, 0x8b, 0x05, 0, 0, 0, 0x10, // 101f: mov rax, [rip+10000000], not code
        0x48, 0x8d, 0x05, 0xf3, 0xff, 0xff, 0xff, // 1026: lea rax, [rip-d], no access
        0xc3, 0xcc, // 102d
    ];
    let b = one(0x1000, &code);
    let read: Vec<u64> = (0xf00..0x1100).filter(|&at| b.is_read(r(at, at + 1))).collect();
    assert_eq!(
        read,
        [&[0x1000][..], &Vec::from_iter(0x1010..0x1018), &Vec::from_iter(0x1027..0x102f)].concat()
    );
    assert!(b.is_read(r(0x100c, 0x1011)) && !b.is_read(r(0x100c, 0x1010)) && !b.is_read(r(0x1018, 0x1027)));
}

#[test]
fn decoding_resumes_one_byte_after_an_invalid_one() {
    // 06 is no instruction in 64-bit mode; the call behind it must still be found.
    let b = one(0, &[0x06, 0x06, 0xe8, 0xf9, 0xff, 0xff, 0xff]);
    assert_eq!(b.invalid(), 2);
    assert_eq!(b.calls_to(Avma(0)).collect::<Vec<_>>(), [Avma(2)]);
    // An instruction truncated by the end of its piece: each of its bytes is tried.
    let b = one(0, &[0x90, 0xe8, 0x00]);
    assert_eq!((b.instructions(), b.invalid()), (1, 2));
}

#[test]
fn cut_covers_all_bytes_once() {
    let bytes: Vec<u8> = (0..0x40).collect();
    let pieces = Piece::cut(
        r(0x100, 0x140),
        &bytes,
        [r(0xf0, 0x104), r(0x104, 0x110), r(0x120, 0x120), r(0x130, 0x200)],
    );
    let ranges: Vec<_> = pieces.iter().map(|p| (p.range.start.0, p.range.end.0)).collect();
    assert_eq!(ranges, [(0x100, 0x104), (0x104, 0x110), (0x110, 0x130), (0x130, 0x140)]);
    let joined: Vec<u8> = pieces.iter().flat_map(|p| p.bytes.iter().copied()).collect();
    assert_eq!(joined, bytes);
    // Where functions overlap, each is whole and no gap is added.
    let over = Piece::cut(r(0x100, 0x140), &bytes, [r(0x100, 0x120), r(0x104, 0x108), r(0x118, 0x130)]);
    let ranges: Vec<_> = over.iter().map(|p| (p.range.start.0, p.range.end.0)).collect();
    assert_eq!(ranges, [(0x100, 0x120), (0x104, 0x108), (0x118, 0x130), (0x130, 0x140)]);
    // Fewer bytes than text: pieces are short or empty, never wrong.
    let short = Piece::cut(r(0x100, 0x140), &bytes[..0x20], [r(0x118, 0x130)]);
    assert_eq!(short.iter().map(|p| p.bytes.len()).collect::<Vec<_>>(), [0x18, 8, 0]);
}

/// A reference: a new decoder for every instruction, and a full search for every query.
#[derive(Default, Debug, PartialEq)]
struct Naive {
    jumps: BTreeSet<(u64, u64)>,
    calls: BTreeSet<(u64, u64)>,
    taken: BTreeSet<(u64, u64)>,
}

fn naive(pieces: &[Piece]) -> Naive {
    let mut out = Naive::default();
    for p in pieces {
        let mut at = 0;
        while at < p.bytes.len() {
            let mut d = Decoder::with_ip(64, &p.bytes[at..], p.range.start.0 + at as u64, 0);
            let i = d.decode();
            if i.is_invalid() {
                at += 1;
                continue;
            }
            if i.is_call_near() {
                out.calls.insert((i.near_branch_target(), i.ip()));
            } else if i.is_jcc_short_or_near()
                || i.is_jmp_short_or_near()
                || i.is_jcx_short()
                || i.is_loop()
                || i.is_loopcc()
                || matches!(i.code(), Code::Xbegin_rel16 | Code::Xbegin_rel32)
            {
                out.jumps.insert((i.near_branch_target(), i.ip()));
            } else if i.code() == Code::Lea_r64_m && i.is_ip_rel_memory_operand() {
                let to = i.ip_rel_memory_address();
                if pieces.iter().any(|p| p.range.contains(Avma(to))) {
                    out.taken.insert((to, i.ip()));
                }
            }
            at += i.len();
        }
    }
    out
}

/// Returns bytes in which branches are common.
fn code() -> impl Strategy<Value = Vec<u8>> {
    let inst = prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 1..4),
        1 => any::<u8>().prop_map(|d| vec![0xeb, d]),
        1 => (0x70u8..0x80, any::<u8>()).prop_map(|(o, d)| vec![o, d]),
        1 => (0xe0u8..0xe4, any::<u8>()).prop_map(|(o, d)| vec![o, d]),
        1 => (any::<i8>(), 0xe8u8..0xea).prop_map(|(d, o)| [&[o][..], &i32::from(d).to_le_bytes()].concat()),
        1 => any::<i8>().prop_map(|d| [&[0x48, 0x8d, 0x05][..], &i32::from(d).to_le_bytes()].concat()),
    ];
    prop::collection::vec(inst, 0..40).prop_map(|v| v.concat())
}

proptest! {
    #[test]
    fn same_as_naive(a in code(), b in code(), gap in 0u64..64, lo in 0u64..300, len in 0u64..300) {
        let base = 0x1000;
        let second = base + a.len() as u64 + gap;
        let pieces = [
            Piece { range: AvmaRange::with_len(Avma(second), b.len() as u64), bytes: &b },
            Piece { range: AvmaRange::with_len(Avma(base), a.len() as u64), bytes: &a },
        ];
        let (got, want) = (sweep(&pieces), naive(&pieces));
        let text = pieces.iter().map(|p| p.range).collect();
        let parts = pieces.chunks(pieces.len().div_ceil(3).max(1));
        assert_eq!(Branches::joined(parts.map(|part| sweep_part(part, &text)).collect()), got);
        let range = AvmaRange::with_len(Avma(base + lo), len);
        let hits = |s: &BTreeSet<(u64, u64)>| -> Vec<(u64, u64)> {
            s.iter().filter(|m| range.contains(Avma(m.0))).map(|m| (m.1, m.0)).collect()
        };
        let raw = |v: &mut dyn Iterator<Item = (Avma, Avma)>| v.map(|(f, t)| (f.0, t.0)).collect::<Vec<_>>();
        prop_assert_eq!(raw(&mut got.jumps_into(range)), hits(&want.jumps));
        prop_assert_eq!(raw(&mut got.calls_into(range)), hits(&want.calls));
        prop_assert_eq!(
            got.calls_from(range).iter().map(|c| (c.from.0, c.to.0)).collect::<BTreeSet<_>>(),
            want.calls.iter().filter(|m| range.contains(Avma(m.1))).map(|m| (m.1, m.0)).collect()
        );
        // Immediates may also be addresses; the addresses of all `lea` must be found.
        let taken = raw(&mut got.taken_in(range));
        for hit in hits(&want.taken) {
            prop_assert!(taken.contains(&hit));
        }
    }

    #[test]
    fn any_bytes_at_any_address(at in any::<u64>(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let b = sweep(&[Piece { range: AvmaRange::new(Avma(at), Avma(u64::MAX)), bytes: &bytes }]);
        prop_assert!(b.instructions() + b.invalid() <= bytes.len());
    }
}
