//! The specification's consistency conditions (clause 3.3.2), each as a statement that counts the rows that
//! break it.

use crate::conditions::Condition;

/// The conditions that hold after transactions. Condition 11 is left out: it holds only for data without
/// transactions.
pub const CONDITIONS: [Condition; 11] = [
    Condition {
        name: "1: W_YTD is the sum of D_YTD",
        sql: "SELECT COUNT(*) FROM warehouse WHERE w_ytd <> (SELECT SUM(d_ytd) FROM district WHERE d_w_id = w_id)",
    },
    Condition {
        name: "2: D_NEXT_O_ID follows the largest O_ID and NO_O_ID",
        sql: "SELECT COUNT(*) FROM district WHERE d_next_o_id - 1 <> (SELECT MAX(o_id) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id) \
              OR d_next_o_id - 1 <> (SELECT MAX(no_o_id) FROM new_order WHERE no_w_id = d_w_id AND no_d_id = d_id)",
    },
    Condition {
        name: "3: new orders have no holes",
        sql: "SELECT COUNT(*) FROM (SELECT no_w_id FROM new_order GROUP BY no_w_id, no_d_id HAVING MAX(no_o_id) - MIN(no_o_id) + 1 <> COUNT(*)) t",
    },
    Condition {
        name: "4: the sum of O_OL_CNT is the number of order lines",
        sql: "SELECT COUNT(*) FROM (SELECT o_w_id w, o_d_id d, SUM(o_ol_cnt) n FROM orders GROUP BY o_w_id, o_d_id) o \
              JOIN (SELECT ol_w_id w, ol_d_id d, COUNT(*) n FROM order_line GROUP BY ol_w_id, ol_d_id) l ON o.w = l.w AND o.d = l.d WHERE o.n <> l.n",
    },
    Condition {
        name: "5: an order has no carrier just where it is a new one",
        sql: "SELECT COUNT(*) FROM orders LEFT JOIN new_order ON no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id \
              WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)",
    },
    Condition {
        name: "6: O_OL_CNT is the number of an order's lines",
        sql: "SELECT COUNT(*) FROM orders LEFT JOIN (SELECT ol_w_id w, ol_d_id d, ol_o_id o, COUNT(*) n FROM order_line GROUP BY ol_w_id, ol_d_id, ol_o_id) l \
              ON l.w = o_w_id AND l.d = o_d_id AND l.o = o_id WHERE o_ol_cnt <> COALESCE(l.n, 0)",
    },
    Condition {
        name: "7: a line has no delivery date just where its order has no carrier",
        sql: "SELECT COUNT(*) FROM order_line JOIN orders ON o_w_id = ol_w_id AND o_d_id = ol_d_id AND o_id = ol_o_id \
              WHERE (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL)",
    },
    Condition {
        name: "8: W_YTD is the sum of the history",
        sql: "SELECT COUNT(*) FROM warehouse LEFT JOIN (SELECT h_w_id w, SUM(h_amount) n FROM history GROUP BY h_w_id) h ON h.w = w_id \
              WHERE w_ytd <> COALESCE(h.n, 0)",
    },
    Condition {
        name: "9: D_YTD is the sum of the history",
        sql: "SELECT COUNT(*) FROM district LEFT JOIN (SELECT h_w_id w, h_d_id d, SUM(h_amount) n FROM history GROUP BY h_w_id, h_d_id) h \
              ON h.w = d_w_id AND h.d = d_id WHERE d_ytd <> COALESCE(h.n, 0)",
    },
    Condition {
        name: "10: C_BALANCE is what was delivered less what was paid",
        sql: "SELECT COUNT(*) FROM customer \
              LEFT JOIN (SELECT o_w_id w, o_d_id d, o_c_id c, SUM(ol_amount) n FROM orders JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id \
              AND ol_o_id = o_id WHERE ol_delivery_d IS NOT NULL GROUP BY o_w_id, o_d_id, o_c_id) l ON l.w = c_w_id AND l.d = c_d_id AND l.c = c_id \
              LEFT JOIN (SELECT h_c_w_id w, h_c_d_id d, h_c_id c, SUM(h_amount) n FROM history GROUP BY h_c_w_id, h_c_d_id, h_c_id) h \
              ON h.w = c_w_id AND h.d = c_d_id AND h.c = c_id WHERE c_balance <> COALESCE(l.n, 0) - COALESCE(h.n, 0)",
    },
    Condition {
        name: "12: C_BALANCE and C_YTD_PAYMENT are what was delivered",
        sql: "SELECT COUNT(*) FROM customer \
              LEFT JOIN (SELECT o_w_id w, o_d_id d, o_c_id c, SUM(ol_amount) n FROM orders JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id \
              AND ol_o_id = o_id WHERE ol_delivery_d IS NOT NULL GROUP BY o_w_id, o_d_id, o_c_id) l ON l.w = c_w_id AND l.d = c_d_id AND l.c = c_id \
              WHERE c_balance + c_ytd_payment <> COALESCE(l.n, 0)",
    },
];
