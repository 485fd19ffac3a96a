//! Records of the kernel's sampling.
#![no_main]
use perf::record::{Fields, Record, Records, field};

libfuzzer_sys::fuzz_target!(|input: (u64, bool, &[u8])| {
    let known = field::IP | field::TID | field::TIME | field::ID | field::PERIOD | field::BRANCH_STACK;
    let fields = Fields::new(input.0 & known, input.1).unwrap();
    for record in Records::new(input.2, fields) {
        if let Ok(Record::Sample(sample)) = record {
            let read = sample.branches.inspect(|b| assert!(b.kind < 16)).count();
            assert!(read * 24 <= input.2.len());
        }
    }
});
