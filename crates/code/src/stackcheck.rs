//! Checks that the unwind rows agree with the instructions' effect on the stack pointer.
//!
//! A function with wrong rows (hand-written assembly without directives) must not be cloned. Its clone's rows
//! would be equally wrong. Other uses of rows would be misled as well: which calls return, and which targets
//! a table may have. Only frame rules on rsp are followed. Rows that count from rbp or use an expression are
//! not checked.

use crate::explore::row_at;
use crate::{Block, Cfg, Dest, Refusal, Term};
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use unwind::{CfaRule, Reg, Row};

/// The rsp offset of the frame address in a function that has just been called.
const AT_ENTRY: i64 = 8;

/// Checks each pair of consecutive instructions, the entry, and each return.
///
/// # Errors
/// [`Refusal::UnwindDisagrees`]; [`Refusal::NoUnwindInfo`] if an instruction has no row.
pub fn stack_check(cfg: &Cfg, rows: &[Row]) -> Result<(), Refusal> {
    for (n, b) in cfg.blocks.iter().enumerate() {
        let after = check_block(cfg, b, rows, n == 0)?;
        let mut result = Ok(());
        let id = crate::BlockId(u32::try_from(n).unwrap_or(u32::MAX));
        cfg.successors(id, |d| {
            let Dest::Block(to) = d else { return };
            let there = row_at(rows, cfg.blocks[to.index()].range.start).map(height);
            if !agree(after, there.unwrap_or(Height::Unknown)) {
                result = Err(Refusal::UnwindDisagrees);
            }
        });
        result?;
    }
    Ok(())
}

/// The location of the frame address, as far as it is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Height {
    Rsp(i64),
    Rbp(i64),
    Unknown,
}

fn height(row: &Row) -> Height {
    match row.cfa {
        CfaRule::RegOffset(Reg::RSP, o) => Height::Rsp(o),
        CfaRule::RegOffset(Reg::RBP, o) => Height::Rbp(o),
        _ => Height::Unknown,
    }
}

fn agree(a: Height, b: Height) -> bool {
    match (a, b) {
        (Height::Rsp(a), Height::Rsp(b)) => a == b,
        _ => true,
    }
}

/// Checks one block and returns the height after its last instruction.
fn check_block(cfg: &Cfg, b: &Block, rows: &[Row], entry: bool) -> Result<Height, Refusal> {
    let insts = &cfg.insts[b.insts.start as usize..b.insts.end as usize];
    let mut row = None;
    let mut now = if entry { Height::Rsp(AT_ENTRY) } else { Height::Unknown };
    for i in insts {
        let here: &Row = match row.filter(|r: &&Row| r.range.contains(i.at)) {
            Some(r) => r,
            None => row_at(rows, i.at).ok_or(Refusal::NoUnwindInfo)?,
        };
        row = Some(here);
        let said = height(here);
        if !agree(now, said) {
            return Err(Refusal::UnwindDisagrees);
        }
        now = step(said, &i.decoded);
    }
    if b.term == Term::Return && row.is_some_and(|r| !agree(height(r), Height::Rsp(AT_ENTRY))) {
        return Err(Refusal::UnwindDisagrees);
    }
    Ok(now)
}

fn step(h: Height, i: &Instruction) -> Height {
    match h {
        Height::Rsp(o) => match rsp_change(i).and_then(|d| o.checked_sub(d)) {
            Some(o) => Height::Rsp(o),
            None => Height::Unknown,
        },
        // A frame pointer is not followed: it stays the same, or the row changes.
        Height::Rbp(_) | Height::Unknown => Height::Unknown,
    }
}

/// Returns the change of rsp by an instruction (a call together with its return); `None` if it is not a
/// constant.
fn rsp_change(i: &Instruction) -> Option<i64> {
    match i.mnemonic() {
        Mnemonic::Call => return Some(0),
        Mnemonic::Leave | Mnemonic::Enter => return None,
        Mnemonic::Push | Mnemonic::Pushfq | Mnemonic::Pop | Mnemonic::Popfq => {
            if i.op0_kind() == OpKind::Register && is_sp(i.op0_register()) && i.mnemonic() == Mnemonic::Pop {
                return None;
            }
            return Some(i64::from(i.stack_pointer_increment()));
        }
        Mnemonic::Ret => return Some(0),
        _ => {}
    }
    if i.op0_kind() != OpKind::Register || !is_sp(i.op0_register()) {
        return if i.mnemonic() == Mnemonic::Xchg && (0..i.op_count()).any(|o| is_sp(i.op_register(o))) {
            None
        } else {
            Some(i64::from(i.stack_pointer_increment()))
        };
    }
    match i.code() {
        Code::Add_rm64_imm8 | Code::Add_rm64_imm32 => Some(i.immediate(1).cast_signed()),
        Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 => i.immediate(1).cast_signed().checked_neg(),
        Code::Lea_r64_m if i.memory_base() == Register::RSP && i.memory_index() == Register::None => {
            Some(i.memory_displacement64().cast_signed())
        }
        Code::Cmp_rm64_imm8
        | Code::Cmp_rm64_imm32
        | Code::Cmp_r64_rm64
        | Code::Cmp_rm64_r64
        | Code::Test_rm64_r64
        | Code::Test_rm64_imm32 => Some(0),
        _ => None,
    }
}

fn is_sp(r: Register) -> bool {
    r.is_gpr() && r.full_register() == Register::RSP
}
