use super::*;

fn record(kind: u32, words: &[u64]) -> Vec<u8> {
    let size = u16::try_from(HEADER + 8 * words.len()).unwrap();
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend([2, 0]);
    bytes.extend(size.to_le_bytes());
    bytes.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    bytes
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[test]
fn every_supported_kind_is_parsed() {
    let fields = Fields::new(field::IP | field::TID | field::TIME | field::ID, false).unwrap();
    let bytes = [
        record(SAMPLE, &[0x40_1000, pair(7, 9), 123, 55]),
        record(LOST, &[55, 17]),
        record(3, &[1, 2, 3]),
        record(LOST_SAMPLES, &[4]),
        record(THROTTLE, &[1, 2, 3]),
        record(UNTHROTTLE, &[1, 2, 3]),
        record(FORK, &[pair(7, 1), pair(10, 9), 200]),
        record(EXIT, &[pair(7, 1), pair(10, 9), 300]),
        record(10, &[]),
    ]
    .concat();
    let got: Vec<Record<'_>> = Records::new(&bytes, fields).map(Result::unwrap).collect();
    let sample =
        SampleRecord { ip: Avma(0x40_1000), pid: 7, tid: 9, time: 123, id: 55, ..SampleRecord::default() };
    let expected = [
        Record::Sample(sample),
        Record::Lost(17),
        Record::Other(3),
        Record::LostSamples(4),
        Record::Throttle,
        Record::Unthrottle,
        Record::Fork(Task { pid: 7, tid: 10, time: 200 }),
        Record::Exit(Task { pid: 7, tid: 10, time: 300 }),
        Record::Other(10),
    ];
    assert_eq!(got, expected);
}

#[test]
fn branch_stacks() {
    // The bits in the kernel's header, from the lowest: mispredicted, predicted, in a transaction, aborted,
    // 16 of cycles, 4 of kind, 2 of speculation.
    let flags = [1 | 77 << 4 | 3 << 20 | 3 << 24, 1 << 1 | 1 << 3 | 0xffff << 4, 1 << 2 | 1 << 24, !0];
    for hw_index in [false, true] {
        let fields = Fields::new(field::IP | field::PERIOD | field::BRANCH_STACK, hw_index).unwrap();
        let mut words = vec![0x10, 1000, 4];
        words.extend(hw_index.then_some(5));
        for (n, flags) in (1..).zip(flags) {
            words.extend([0x100 * n, 0x1000 * n, flags]);
        }
        let bytes = record(SAMPLE, &words);
        let Some(Ok(Record::Sample(s))) = Records::new(&bytes, fields).next() else { panic!() };
        assert_eq!((s.ip, s.period), (Avma(0x10), 1000));
        let branches: Vec<Branch> = s.branches.collect();
        let plain = |n: u64| Branch {
            from: Avma(0x100 * n),
            to: Avma(0x1000 * n),
            mispredicted: false,
            predicted: false,
            aborted: false,
            wrong_path: false,
            cycles: 0,
            kind: 0,
        };
        let wanted = [
            Branch { mispredicted: true, cycles: 77, kind: 3, ..plain(1) },
            Branch { predicted: true, aborted: true, cycles: 0xffff, ..plain(2) },
            Branch { wrong_path: true, ..plain(3) },
            Branch {
                mispredicted: true,
                predicted: true,
                aborted: true,
                cycles: 0xffff,
                kind: 15,
                ..plain(4)
            },
        ];
        assert_eq!(branches, wanted);
        // The newest entry's index adds eight bytes: a reader that does not expect them misreads the record.
        let other = Fields::new(field::IP | field::PERIOD | field::BRANCH_STACK, !hw_index).unwrap();
        let misread = Records::new(&bytes, other).next().unwrap();
        assert!(misread != Ok(Record::Sample(s)));
    }
}

#[test]
fn malformed_bytes_give_an_error_and_end_the_records() {
    let fields = Fields::new(field::IP | field::BRANCH_STACK, false).unwrap();
    fn all(bytes: &[u8], fields: Fields) -> Vec<Result<Record<'_>, Malformed>> {
        Records::new(bytes, fields).collect()
    }
    assert_eq!(all(&[1, 2, 3], fields), [Err(Malformed::CutOff { have: 3, want: 8 })]);
    let mut long = record(LOST, &[1, 2]);
    long.pop();
    assert_eq!(all(&long, fields), [Err(Malformed::CutOff { have: 23, want: 24 })]);
    assert_eq!(all(&[9, 0, 0, 0, 0, 0, 7, 0], fields), [Err(Malformed::TooShort { kind: 9, size: 7 })]);
    // More branches than bytes, and more than any number of bytes.
    for n in [2, u64::MAX, u64::MAX / 24 + 1] {
        let bytes = [record(SAMPLE, &[1, n, 0, 0, 0]), record(LOST, &[1, 2])].concat();
        assert_eq!(all(&bytes, fields), [Err(Malformed::TooShort { kind: SAMPLE, size: 48 })]);
    }
    assert_eq!(Fields::new(1 << 5, false), Err(Malformed::UnknownFields { bits: 1 << 5 }));
}

#[test]
fn any_bytes_are_safe() {
    arbtest::arbtest(|u| {
        let fields = Fields::new(u.arbitrary::<u64>()? & field::ALL, u.arbitrary()?).unwrap();
        let mut bytes = Vec::new();
        // Valid headers, so that bodies are reached; then arbitrary bytes.
        for _ in 0..u.int_in_range(0..=4)? {
            let words: Vec<u64> = u.arbitrary()?;
            bytes.extend(record(u.int_in_range(0..=16)?, &words[..words.len().min(100)]));
        }
        bytes.extend(u.arbitrary::<Vec<u8>>()?);
        let mut read = 0;
        for r in Records::new(&bytes, fields) {
            if let Ok(Record::Sample(s)) = r {
                // Each field of an entry is within its width.
                read += s.branches.inspect(|b| assert!(b.kind < 16)).count() * 24;
            }
        }
        assert!(read <= bytes.len());
        Ok(())
    })
    .budget_ms(1000);
}
