//! Hand-made exception tables: the encodings that compilers use, and tables that must be refused.

use addr::{Avma, AvmaRange, ReadMemory};
use std::time::{Duration, Instant};
use unwind::{Error, Lsda};

/// The address of the table.
const AT: u64 = 0x1_0000;
/// The function: 0x4000..0x5000.
const FUNC: AvmaRange = AvmaRange { start: Avma(0x4000), end: Avma(0x5000) };

fn parse(bytes: &[u8]) -> Result<Lsda, Error> {
    Lsda::parse(&(Avma(AT), bytes), Avma(AT), FUNC)
}

fn pads(bytes: &[u8]) -> Vec<Option<Avma>> {
    parse(bytes).unwrap().call_sites.iter().map(|s| s.landing_pad).collect()
}

fn says(bytes: &[u8], what: &str) {
    let error = parse(bytes).unwrap_err().to_string();
    assert!(error.contains(what), "{error:?} for {what:?}");
}

#[test]
fn as_gcc_writes_for_pie() {
    // No base; types pcrel|indirect|sdata4, their base at 3 + 29 = 32; call sites LEB128.
    let mut bytes = vec![0xff, 0x9b, 29, 1, 9];
    bytes.extend([0x10, 5, 0x80, 2, 3]); // 0x4010..0x4015, pad 0x4100, action 3.
    bytes.extend([0x20, 5, 0, 0]); // 0x4020..0x4025, passes.
    // At 14: action 1 is the cleanup; action 3 is type 2, then specification -1, then (5 back from 19) the
    // cleanup.
    bytes.extend([0, 0, 2, 1, 0x7f, 0x7b]);
    bytes.extend([0; 4]); // Padding.
    let type2 = (AT + 40) - (AT + 24); // Through the slot at 40.
    bytes.extend(u32::try_from(type2).unwrap().to_le_bytes());
    bytes.extend([0; 4]); // Type 1 catches all.
    assert_eq!(bytes.len(), 32);
    bytes.extend([1, 2, 0, 0xee, 0xee, 0xee, 0xee, 0xee]); // Types 1 and 2 are let through.
    bytes.extend(0x7777_0000_1111u64.to_le_bytes());

    let lsda = parse(&bytes).unwrap();
    assert_eq!(lsda.call_sites.len(), 2);
    assert_eq!(lsda.lookup(Avma(0x4014)).unwrap().landing_pad, Some(Avma(0x4100)));
    assert_eq!(lsda.lookup(Avma(0x4014)).unwrap().action, 3);
    assert_eq!(lsda.lookup(Avma(0x4015)), None);
    assert_eq!(lsda.lookup(Avma(0x4020)).unwrap().landing_pad, None);
    assert_eq!(lsda.lookup(Avma(0x400f)), None);
    assert_eq!(lsda.actions, [0, 0, 2, 1, 0x7f, 0x7b]);
    assert_eq!(lsda.types, [None, Some(Avma(0x7777_0000_1111))]);
    assert_eq!(lsda.filters, [1, 2, 0]);

    // Every byte that is used must be there.
    for len in 0..48 {
        assert!(parse(&bytes[..len]).is_err(), "{len}");
    }
}

#[test]
fn landing_pad_bases() {
    let sites = [0xff, 1, 4, 0, 1, 8, 0];
    let with = |base: &[u8]| pads(&[base, &sites].concat());
    assert_eq!(with(&[0xff]), [Some(Avma(0x4008))]);
    // Absolute, null (full addresses), function-relative, pc-relative, signed, aligned.
    assert_eq!(with(&[0x00, 0, 0, 0x40, 0, 0, 0, 0, 0]), [Some(Avma(0x40_0008))]);
    assert_eq!(with(&[0x00, 0, 0, 0, 0, 0, 0, 0, 0]), [Some(Avma(8))]);
    assert_eq!(with(&[0x03, 0, 0, 0, 0]), [Some(Avma(8))]);
    assert_eq!(with(&[0x43, 0x10, 0, 0, 0]), [Some(Avma(0x4018))]);
    assert_eq!(with(&[0x1b, 0xff, 0xff, 0xff, 0xff]), [Some(Avma(AT + 8))]);
    assert_eq!(with(&[0x1a, 0xfe, 0xff]), [Some(Avma(AT + 7))]);
    assert_eq!(with(&[0x11, 0x80, 2]), [Some(Avma(AT + 0x109))]);
    assert_eq!(with(&[0x19, 0x7f]), [Some(Avma(AT + 8))]);
    assert_eq!(with(&[0x02, 0, 0x80]), [Some(Avma(0x8008))]);
    assert_eq!(with(&[0x50, 9, 9, 9, 9, 9, 9, 9, 5, 0, 0, 0, 0, 0, 0, 0]), [Some(Avma(0xd))]);
}

#[test]
fn call_site_encodings() {
    let one = |encoding: u8, numbers: &[u8]| {
        let len = u8::try_from(numbers.len()).unwrap();
        parse(&[&[0xff, 0xff, encoding, len], numbers].concat())
    };
    for (encoding, size) in [(0x00, 8), (0x02, 2), (0x03, 4), (0x04, 8), (0x0a, 2), (0x0b, 4), (0x0c, 8)] {
        let mut numbers = vec![0; 3 * size + 1];
        (numbers[0], numbers[size], numbers[2 * size]) = (1, 2, 3);
        let lsda = one(encoding, &numbers).unwrap();
        assert_eq!(lsda.call_sites[0].range, AvmaRange::new(Avma(0x4001), Avma(0x4003)));
        assert_eq!(lsda.call_sites[0].landing_pad, Some(Avma(0x4003)));
    }
    assert!(one(0x09, &[1, 2, 3, 0]).is_ok());
    assert!(matches!(one(0x1b, &[0; 13]), Err(Error::Encoding { encoding: 0x1b, .. })));
    assert!(matches!(one(0x05, &[0; 13]), Err(Error::Encoding { encoding: 0x05, .. })));
    // Numbers: at most 64 bits, with any padding.
    assert!(one(1, &[0x81, 0x80, 0, 2, 3, 0]).is_ok());
    let long = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02, 1, 1, 0];
    assert!(one(1, &long).unwrap_err().to_string().contains("64 bits"));
    let padded = [0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00, 1, 1, 0];
    assert!(one(1, &padded).is_ok());
}

#[test]
fn unsound_tables_are_refused() {
    let table = |sites: &[u8], tail: &[u8]| {
        [&[0xff, 0xff, 1, u8::try_from(sites.len()).unwrap()], sites, tail].concat()
    };
    says(&table(&[0, 8, 0, 0, 7, 1, 0, 0], &[]), "not in order");
    says(&table(&[0x80, 0x20, 1, 0, 0], &[]), "leaves the function");
    says(&table(&[0xff, 0x1f, 2, 0, 0], &[]), "leaves the function");
    says(&table(&[0, 8, 0], &[0]), "leaves its table");
    says(&table(&[0, 8, 0, 1], &[1, 0]), "without a type table");
    says(&table(&[0, 8, 0, 1], &[0x7f, 0]), "without a type table");
    says(&table(&[0, 8, 0, 1], &[0, 1, 0, 0x7d]), "ring");
    says(&table(&[0, 8, 0, 1], &[0, 0x7d]), "leaves the table");
    says(&table(&[0, 8, 0, 9], &[0, 0]), "cannot read");
    says(&[0xff, 0xff, 1, 0xff, 0xff, 0xff, 0xff, 0x0f], "too large");
    says(&[0xff, 0x03, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, 4, 0, 8, 0, 1, 1, 0], "too large");
    // Two types, but space for only one.
    says(&[0xff, 0x03, 12, 1, 4, 0, 8, 0, 1, 2, 0, 9, 0, 0, 0], "run into");
    // Text-relative pointers have no base here; a type without a fixed size has no position.
    assert!(matches!(parse(&[0x23, 0, 0, 0, 0, 0xff, 1, 0]), Err(Error::Encoding { encoding: 0x23, .. })));
    assert!(matches!(
        parse(&[0xff, 0x01, 12, 1, 4, 0, 8, 0, 1, 1, 0, 9, 0, 0, 0]),
        Err(Error::Encoding { encoding: 0x01, .. })
    ));
    // An indirect pointer whose slot cannot be read.
    assert!(matches!(
        parse(&[0xff, 0x9b, 12, 1, 4, 0, 8, 0, 1, 1, 0, 0, 0, 0, 0x40]),
        Err(Error::Unreadable(_))
    ));
}

/// Chains and specifications with shared ends are walked once; otherwise this takes hours.
#[test]
fn shared_ends_are_walked_once() {
    let count = 200_000u64;
    let uleb = |mut n: u64| {
        let mut out = Vec::new();
        while n >= 0x80 {
            out.push(u8::try_from(n & 0x7f).unwrap() | 0x80);
            n >>= 7;
        }
        out.push(u8::try_from(n).unwrap());
        out
    };
    let sleb5 = |n: i64| -> Vec<u8> {
        let group = |i: i32| u8::try_from((n >> (7 * i)) & 0x7f).unwrap() | if i < 4 { 0x80 } else { 0 };
        (0..5).map(group).collect()
    };
    // Call site i begins the chain at record i, which continues to record i + 1. Record i uses the
    // specification that begins at byte i of one long list.
    let func = AvmaRange::with_len(Avma(0x4000), count);
    let mut sites = Vec::new();
    let mut actions = Vec::new();
    for i in 0..count {
        sites.extend(uleb(i));
        sites.extend([1, 0]);
        sites.extend(uleb(1 + 6 * i));
        actions.extend(sleb5(-1 - i.cast_signed()));
        actions.push(u8::from(i + 1 < count));
    }
    let mut rest = vec![1];
    rest.extend(uleb(sites.len() as u64));
    rest.extend(&sites);
    rest.extend(&actions);
    rest.extend([0; 8]); // Type 1.
    let mut bytes = vec![0xff, 0x00];
    bytes.extend(uleb(rest.len() as u64));
    bytes.extend(&rest);
    bytes.resize(bytes.len() + usize::try_from(count).unwrap(), 1);
    bytes.push(0);

    let start = Instant::now();
    let lsda = Lsda::parse(&(Avma(AT), &bytes[..]), Avma(AT), func).unwrap();
    assert_eq!((lsda.call_sites.len(), lsda.types.len()), (200_000, 1));
    assert_eq!((lsda.actions.len(), lsda.filters.len()), (1_200_000, 200_001));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// An unlimited memory: a claimed size must be bounded before it is used.
struct Zeroes;

impl ReadMemory for Zeroes {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), addr::Unreadable> {
        buf.fill(0);
        let table = [0xffu8, 0xff, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        for (i, byte) in buf.iter_mut().enumerate() {
            let offset = at.0.wrapping_add(i as u64).wrapping_sub(AT);
            *byte = usize::try_from(offset).ok().and_then(|o| table.get(o)).copied().unwrap_or(0);
        }
        assert!(buf.len() <= 1 << 23);
        Ok(())
    }
}

#[test]
fn claimed_sizes_are_bounded() {
    assert!(matches!(Lsda::parse(&Zeroes, Avma(AT), FUNC), Err(Error::Lsda { what: "it is too large", .. })));
}
