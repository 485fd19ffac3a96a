public class Spin {
    static volatile long x;

    public static void main(String[] args) {
        System.out.println("ready");
        while (true) x++;
    }
}
