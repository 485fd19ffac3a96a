use super::*;
use addr::Unreadable;

/// Memory of words, by their addresses.
struct Words(FxHashMap<u64, u64>);

impl ReadMemory for Words {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        let word = self.0.get(&at.0).ok_or(Unreadable { at, len: buf.len() as u64 })?;
        buf.copy_from_slice(&word.to_le_bytes()[..buf.len()]);
        Ok(())
    }
}

fn form(bytes: &[u8]) -> Option<Form> {
    Form::of(&iced_x86::Decoder::new(64, bytes, iced_x86::DecoderOptions::NONE).decode())
}

#[test]
fn destinations_follow_from_the_recorded_registers() {
    let memory = Words([(0x1038, 0xaaaa), (0x5010, 0xbbbb), (0x7000, 0xcccc)].into_iter().collect());
    let goes = |bytes: &[u8], kept| form(bytes).unwrap().destination(kept, &memory);
    // call *%r11
    assert_eq!(goes(&[0x41, 0xff, 0xd3], [0x1234, 0]), Some(Avma(0x1234)));
    // call *0x38(%rax)
    assert_eq!(goes(&[0xff, 0x50, 0x38], [0x1000, 0]), Some(Avma(0xaaaa)));
    assert_eq!(goes(&[0xff, 0x50, 0x38], [0x2000, 0]), None);
    // jmp *0x10(%rbx,%rcx,8)
    assert_eq!(goes(&[0xff, 0x64, 0xcb, 0x10], [0x4000, 0x200]), Some(Avma(0xbbbb)));
    // call *0x6000(,%rax,8)
    assert_eq!(goes(&[0xff, 0x14, 0xc5, 0, 0x60, 0, 0], [0x200, 0]), Some(Avma(0xcccc)));
}

#[test]
fn calls_through_the_stack_or_fixed_places_are_not_watched() {
    // call *8(%rsp), call *0x10(%rip), call *%fs:0x10(%rax), call *0x1000
    for bytes in [
        &[0xff, 0x54, 0x24, 8][..],
        &[0xff, 0x15, 0x10, 0, 0, 0],
        &[0x64, 0xff, 0x50, 0x10],
        &[0xff, 0x14, 0x25, 0, 0x10, 0, 0],
    ] {
        assert_eq!(form(bytes), None, "{bytes:x?}");
    }
}

#[test]
fn the_most_frequent_target_comes_first() {
    let memory = Words([(0x1038, 0xaaaa), (0x2038, 0xbbbb)].into_iter().collect());
    let site = |inst, offset, bytes: &[u8]| Site { inst, offset, form: form(bytes).unwrap() };
    let sites = [site(InstId(3), 0x100, &[0x41, 0xff, 0xd3]), site(InstId(9), 0x108, &[0xff, 0x50, 0x38])];
    assert_eq!(
        sites.iter().flat_map(watches).map(|w| (w.inst.0, w.register.number(), w.offset)).collect::<Vec<_>>(),
        [(3, 11, 0x100), (9, 0, 0x108)]
    );
    let mut seen = Seen::default();
    // The threads passed neither site, both, the second, and the second; the last part is too short.
    for words in [&[0, 0][..], &[0x77, 0x2000], &[0, 0x1000], &[0, 0x2000], &[0]] {
        seen.take(&sites, 0x100, words, &memory);
    }
    let (targets, bases): (Vec<_>, Vec<_>) =
        seen.sites().map(|s| (ranked(s.targets), ranked(s.bases))).unzip();
    assert_eq!(targets, [vec![(Avma(0x77), 1)], vec![(Avma(0xbbbb), 2), (Avma(0xaaaa), 1)]]);
    assert_eq!(bases, [vec![], vec![(Avma(0x2000), 2), (Avma(0x1000), 1)]]);
}
